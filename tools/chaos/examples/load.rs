//! Much at once: a thousand operations in flight on every rank, and groups made and dropped a thousand times.
//!
//! ```text
//! cargo build --release -p comity-cli -p chaos --example load
//! target/release/comity launch -n 64 -- target/release/examples/load flight 1000
//! target/release/comity launch -n 4 -- target/release/examples/load groups 1000
//! target/release/comity launch -n 4 -- target/release/examples/load grow 600     # seconds
//! target/release/comity launch -n 2 -- target/release/examples/load steady 10   # seconds
//! target/release/comity launch -n 2 -- target/release/examples/load parting 3   # seconds
//! ```
//!
//! Every result is checked. `steady` sums and passes messages there and back between ranks 0 and 1, with pauses, and says how long the
//! longest round took. `parting` waits, then rank 0 sends the others a last message each and ends without closing its group. `groups` and `grow` say how many descriptors, threads and KiB of memory a rank holds after a
//! warm-up and at its end, and end with code 1 when descriptors or threads have grown at all, or memory by more than 1 % and
//! 256 KiB.

use chaos::Held;
use comity::{ConfigError, Error, Group, ReduceOp};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (what, n) = match args.as_slice() {
        [what, n] => (what.as_str(), n.parse().unwrap_or(0)),
        _ => ("", 0),
    };
    if n == 0 {
        eprintln!("load: say flight, groups, grow, steady or parting, and how many");
        std::process::exit(2);
    }
    let done = comity::init().and_then(|group| match what {
        "flight" => flight(&group, n),
        "groups" => groups(&group, n),
        "grow" => grow(&group, n),
        "steady" => steady(&group, n),
        "parting" => parting(&group, n),
        other => {
            Err(ConfigError::new(format!("{other:?} is none of flight, groups, grow, steady, parting"))
                .into())
        }
    });
    match done {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(e) => {
            eprintln!("load: {e}");
            std::process::exit(1);
        }
    }
}

/// `n` all_reduces are asked for before the first is waited for.
fn flight(group: &Group, n: usize) -> Result<bool, Error> {
    let rank = group.rank() as u64;
    let size = group.size() as u64;
    let start = Instant::now();
    let pending: Vec<_> = (0..n as u64)
        .map(|k| {
            group.spawn(move |g| {
                let mut x = vec![rank + k; 1 + k as usize % 700];
                g.all_reduce(&mut x, ReduceOp::Sum)?;
                Ok(x)
            })
        })
        .collect();
    let asked = start.elapsed();
    let mut right = true;
    for (k, request) in pending.into_iter().enumerate() {
        let expected = size * (size - 1) / 2 + size * k as u64;
        right &= request.wait()?.iter().all(|&x| x == expected);
    }
    group.barrier()?;
    if group.rank() == 0 {
        println!(
            "{n} operations in flight on each of {size} ranks: asked for in {asked:?}, done in {:?}",
            start.elapsed()
        );
    }
    if !right {
        eprintln!("load: rank {rank}: a sum is wrong");
    }
    Ok(right)
}

/// For `n` seconds: sums of few and many elements, and messages there and back.
fn steady(group: &Group, n: usize) -> Result<bool, Error> {
    let rank = group.rank();
    let size = group.size();
    let start = Instant::now();
    let mut rounds = 0usize;
    let mut longest = Duration::ZERO;
    let mut right = true;
    loop {
        let round = Instant::now();
        let len = [1, 300, 70_000, 300_000][rounds % 4];
        let mut x: Vec<u64> = (0..len).map(|i| (i * 7 + rank + rounds) as u64).collect();
        group.all_reduce(&mut x, ReduceOp::Sum)?;
        let ranks = size * (size - 1) / 2;
        right &= x.iter().enumerate().all(|(i, x)| *x == ((i * 7 + rounds) * size + ranks) as u64);
        let (ping, pong): (Vec<_>, Vec<_>) =
            (0..len).map(|i| ((i + rounds) as u32, (i * 3 + rounds) as u32)).unzip();
        let mut came = vec![0u32; len];
        match rank {
            0 => {
                group.send(&ping[..], 1, 7)?;
                group.recv(&mut came[..], 1, 7)?;
                right &= came == pong;
            }
            1 => {
                group.recv(&mut came[..], 0, 7)?;
                group.send(&pong[..], 0, 7)?;
                right &= came == ping;
            }
            _ => {}
        }
        longest = longest.max(round.elapsed());
        rounds += 1;
        // The others wait meanwhile for what this one has sent, or send to it.
        if rounds.is_multiple_of(7 + rank) {
            std::thread::sleep(Duration::from_millis(40));
        }
        let mut is_over = [u8::from(rank == 0 && start.elapsed().as_secs() >= n as u64)];
        group.all_reduce(&mut is_over, ReduceOp::Max)?;
        if is_over[0] > 0 {
            break;
        }
    }
    println!("rank {rank}: {rounds} rounds, the longest of {} ms", longest.as_millis());
    if !right {
        eprintln!("load: rank {rank}: a sum or a message is wrong");
    }
    Ok(right)
}

/// After `n` seconds rank 0 sends a last message to each other rank, and its process ends without closing the group.
fn parting(group: &Group, n: usize) -> Result<bool, Error> {
    let mut x = [1u32];
    group.all_reduce(&mut x, ReduceOp::Sum)?;
    let word: Vec<u32> = (0..2000).map(|i| i * 7).collect();
    if group.rank() == 0 {
        std::thread::sleep(Duration::from_secs(n as u64));
        for rank in 1..group.size() {
            group.send(&word[..], rank, 3)?;
        }
        std::process::exit(0);
    }
    let mut came = vec![0u32; word.len()];
    let begun = Instant::now();
    group.recv(&mut came[..], 0, 3)?;
    println!("rank {}: the last message came after {} ms", group.rank(), begun.elapsed().as_millis());
    if came != word {
        eprintln!("load: rank {}: the last message is wrong", group.rank());
    }
    Ok(came == word)
}

/// The flight recorder keeps 4,096 calls and the control thread the names of 4,096 past groups: memory that is filled once.
const FILL: usize = 4300;

/// `n` times, after a filling: halves of the group, a sum in each, and away with them.
fn groups(group: &Group, n: usize) -> Result<bool, Error> {
    let mut early = None;
    let mut right = true;
    for k in 0..FILL + n {
        let color = ((group.rank() + k) % 2) as i32;
        let half = group.split(Some(color), 0)?.unwrap();
        let mut one = [1u32];
        half.all_reduce(&mut one, ReduceOp::Sum)?;
        right &= one[0] as usize == half.size();
        drop(half);
        if k == FILL {
            group.barrier()?;
            early = Some(Held::by(std::process::id()));
        }
    }
    finish(group, early, right, &format!("{n} groups made and dropped"))
}

/// Sums of all sizes for so many seconds.
fn grow(group: &Group, seconds: usize) -> Result<bool, Error> {
    let mut early = None;
    let mut right = true;
    let start = Instant::now();
    let mut calls = 0u64;
    // One buffer for all sizes: what an allocator keeps of 4 MiB given back is not this library's growth.
    let mut buffer = vec![0f32; 1 << 20];
    loop {
        let x = &mut buffer[..1 << (calls % 21)];
        x.fill(1.0);
        group.all_reduce(&mut x[..], ReduceOp::Sum)?;
        right &= x.iter().all(|&v| v == group.size() as f32);
        calls += 1;
        if calls.is_multiple_of(256) {
            // Rank 0 decides for all, whose clocks differ.
            let mut age = [start.elapsed().as_millis() as u64];
            group.broadcast(&mut age, 0)?;
            if early.is_none() && calls >= FILL as u64 && age[0] >= seconds as u64 * 250 {
                early = Some(Held::by(std::process::id()));
            }
            if age[0] >= seconds as u64 * 1000 {
                break;
            }
        }
    }
    finish(group, early, right, &format!("{calls} sums in {seconds} s"))
}

/// Report whether all was right and nothing has grown, on every rank.
fn finish(group: &Group, early: Option<Held>, right: bool, what: &str) -> Result<bool, Error> {
    group.barrier()?;
    let late = Held::by(std::process::id());
    let early = early.unwrap_or(late);
    println!(
        "rank {}: {what}; descriptors {} then {}, threads {} then {}, KiB {} then {}",
        group.rank(),
        early.descriptors,
        late.descriptors,
        early.threads,
        late.threads,
        early.kib,
        late.kib
    );
    let mut bad = [u32::from(
        !right
            || late.kib == 0
            || late.exceeds(early, Held { kib: early.kib / 100 + 256, ..Held::default() }),
    )];
    group.all_reduce(&mut bad, ReduceOp::Sum)?;
    if bad[0] > 0 && group.rank() == 0 {
        eprintln!("load: {} ranks were wrong or have grown", bad[0]);
    }
    Ok(bad[0] == 0)
}
