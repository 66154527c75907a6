//! A rank that is killed in the midst of training: processes, of which the others name it.

use super::noise;
use candle_core::{DType, Device, Module};
use candle_nn::{VarBuilder, VarMap};
use comity::{Config, Group, Key, tools};
use comity_candle::{AllToShardedLinear, DataParallel, Error, Result, ShardedToAllLinear, Sharding};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

const ROLE: &str = "COMITY_CANDLE_TEST_ROLE";
const KEY: [u8; 32] = [7; 32];
const LIMIT: Duration = Duration::from_secs(20);

/// Steps until another rank is lost; then its number.
fn train(rank: usize, store: &str) -> usize {
    let config = Config::new(rank, 3).store(store).unwrap().key(Key::from(KEY)).timeout(LIMIT);
    let group = config.connect().unwrap();
    let mut step = 0;
    loop {
        match one_step(&group) {
            Ok(()) => {
                step += 1;
                if step == 3 {
                    println!("training");
                }
            }
            Err(Error::Group(e)) => {
                let comity::ErrorKind::PeerLost { peer, .. } = e.kind() else { panic!("another error: {e}") };
                return peer.rank;
            }
            Err(e) => panic!("another error: {e}"),
        }
    }
}

/// A step with calls in the forward and in the backward pass.
fn one_step(group: &Group) -> Result<()> {
    let vars = VarMap::new();
    let share = Sharding::balanced();
    let model = |vb: VarBuilder| -> Result<_> {
        let up = AllToShardedLinear::new(group, 4, 6, false, &share, vb.pp("up"))?;
        let down = ShardedToAllLinear::new(group, 6, 4, false, &share, vb.pp("down"))?;
        Ok(down.forward(&up.forward(&noise((2, 4), 1))?.relu()?)?.sqr()?.mean_all()?)
    };
    model(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    DataParallel::new(&Group::single(), &vars)?.gradients(&[()], |vb, ()| model(vb))?;
    Ok(())
}

/// A child process that does not outlive the test.
struct Rank(Child, BufReader<ChildStdout>);

impl Rank {
    fn start(rank: usize, store: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::a_rank_that_is_killed_in_training_is_named", "--nocapture"])
            .env(ROLE, format!("{rank} {store}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self(child, out)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rank_that_is_killed_in_training_is_named() {
    if let Ok(role) = std::env::var(ROLE) {
        let (rank, store) = role.split_once(' ').unwrap();
        println!("lost {}", train(rank.parse().unwrap(), store));
        return;
    }
    let bind = "127.0.0.1:0".parse().unwrap();
    let store = tools::Store::start(bind, 3, &Key::from(KEY), "-", LIMIT).unwrap();
    let at = store.addr().to_string();
    let mut one = Rank::start(1, &at);
    let mut two = Rank::start(2, &at);
    let killer = std::thread::spawn(move || {
        let mut line = String::new();
        while !line.contains("training") {
            line.clear();
            assert!(one.1.read_line(&mut line).unwrap() > 0, "rank 1 ended too early");
        }
        one.0.kill().unwrap();
    });
    assert_eq!(train(0, &at), 1);
    killer.join().unwrap();
    let mut said = String::new();
    two.1.read_to_string(&mut said).unwrap();
    assert!(said.contains("lost 1"), "{said}");
}
