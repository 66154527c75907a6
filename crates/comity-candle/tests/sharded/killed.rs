//! Ranks that are killed in the midst of training or of saving: processes, of which the others name the one that is gone.

use super::{noise, variable};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap, linear};
use comity::{Config, Group, Key, LinkKind, tools};
use comity_candle::{
    AllToShardedLinear, DataParallel, Error, Parameter, Passes, Pipeline, Result, ShardedToAllLinear,
    Sharding, fully_shard, save_checkpoint,
};
use scope::{Actor, role, say};
use std::{env, fs, path::Path, process::Command, time::Duration};

const KEY: [u8; 32] = [7; 32];
const LIMIT: Duration = Duration::from_secs(60);
/// Ways of training.
const WAYS: [&str; 4] = ["tensor", "data", "shards", "stages"];
/// Rows of 4 KiB, of which each of three ranks has 4 MiB; and the longest file that a rank to be killed may write, in blocks of 512 or 1,024 bytes.
const ROWS: usize = 3 << 10;
const BLOCKS: usize = 2048;

fn connect(rank: usize, store: &str) -> Group {
    // A killed process is told by the system; a sleeping one is not to be taken for dead. No shared memory: its length would count too.
    let config = Config::new(rank, 3).store(store).unwrap().key(Key::from(KEY)).timeout(LIMIT);
    let config = config.set("COMITY_DETECTION", "60").unwrap();
    config.links([LinkKind::Tcp]).join_timeout(LIMIT).connect().unwrap()
}

/// The rank that an error says is lost, at once or, after a call in the background, as the cause.
fn lost(e: Error) -> usize {
    let Error::Group(e) = e else { panic!("another error: {e}") };
    let e = if let comity::ErrorKind::Broken(cause) = e.kind() { cause } else { &e };
    let comity::ErrorKind::PeerLost { peer, .. } = e.kind() else { panic!("another error: {e}") };
    peer.rank
}

/// Steps until another rank is lost; then its number.
fn train(way: &str, rank: usize, store: &str) -> usize {
    let group = connect(rank, store);
    let mut step = 0;
    loop {
        match one_step(way, &group) {
            Ok(()) => {
                step += 1;
                if step == 3 {
                    say("training");
                }
            }
            Err(e) => return lost(e),
        }
    }
}

/// A step with calls in the forward and in the backward pass.
fn one_step(way: &str, group: &Group) -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let x = noise((2, 4), 1);
    match way {
        "tensor" => {
            let share = Sharding::balanced();
            let up = AllToShardedLinear::new(group, 4, 6, false, &share, vb.pp("up"))?;
            let down = ShardedToAllLinear::new(group, 6, 4, false, &share, vb.pp("down"))?;
            let x = variable(&x);
            down.forward(&up.forward(&x)?.relu()?)?.sqr()?.mean_all()?.backward()?;
        }
        "data" => {
            linear(4, 4, vb)?;
            let mut training = DataParallel::new(group, &vars)?;
            for _ in 0..2 {
                // The first learns the order in which gradients come; those of the second travel during its backward pass.
                training
                    .gradients(&[()], |vb, ()| Ok(linear(4, 4, vb)?.forward(&x)?.sqr()?.mean_all()?))?;
            }
        }
        "shards" => {
            let layer = || vec![("w".to_string(), noise((4, 4), 2))];
            let mut x = x;
            for layer in fully_shard(group, [layer(), layer()])? {
                x = layer.forward(&x, |vb, x| Ok(x.matmul(&vb.get((4, 4), "w")?)?))?;
            }
            x.sqr()?.mean_all()?.backward()?;
        }
        _ => {
            let w = variable(&noise((4, 4), 2));
            Pipeline::new(group, Passes::default())?.run(&[(), ()], |input, ()| {
                let x = input.unwrap_or_else(|| x.clone()).matmul(&w)?;
                Ok(if group.rank() < 2 { x } else { x.sqr()?.mean_all()? })
            })?;
        }
    }
    Ok(())
}

/// Save rows, all of which have this value; the rank that was lost meanwhile.
fn save(rank: usize, store: &str, file: &Path, value: f32) -> usize {
    let group = connect(rank, store);
    lost(save_checkpoint(&group, file, &rows(&group, value)).unwrap_err())
}

fn rows(group: &Group, value: f32) -> Vec<Parameter> {
    let parts = Sharding::balanced().partition(ROWS, group.size()).unwrap();
    let mine = Tensor::full(value, (parts.sizes()[group.rank()], 1024), &Device::Cpu).unwrap();
    vec![Parameter::sharded("rows", mine, 0, parts)]
}

/// A rank, which may write so many blocks to a file: beyond that the system kills it.
fn start(test: &str, role: String, may_write: &str) -> Actor {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -c 0; ulimit -f {may_write}; exec \"$0\" \"$@\"")]);
    Actor::run(command.arg(env::current_exe().unwrap()), module_path!(), test, role)
}

fn store() -> tools::Store {
    tools::Store::start("127.0.0.1:0".parse().unwrap(), 3, &Key::from(KEY), "-", LIMIT).unwrap()
}

#[test]
fn a_rank_that_is_killed_in_training_is_named() {
    const TEST: &str = "a_rank_that_is_killed_in_training_is_named";
    if let Some(role) = role() {
        let role: Vec<&str> = role.split(' ').collect();
        say(format!("lost {}", train(role[0], role[1].parse().unwrap(), role[2])));
        return;
    }
    for way in WAYS {
        let store = store();
        let at = store.addr().to_string();
        let start = |rank: usize| start(TEST, format!("{way} {rank} {at}"), "unlimited");
        let mut one = start(1);
        let mut two = start(2);
        let killer = std::thread::spawn(move || {
            assert_eq!(one.hear(), "training");
            one.kill();
        });
        assert_eq!(train(way, 0, &at), 1, "{way}");
        killer.join().unwrap();
        let said: Vec<_> = std::iter::from_fn(|| two.hear_any()).collect();
        assert_eq!(said.last().map(String::as_str), Some("lost 1"), "{way}: {said:?}");
    }
}

#[test]
fn a_checkpoint_is_whole_when_a_rank_is_killed_while_it_writes() {
    const TEST: &str = "a_checkpoint_is_whole_when_a_rank_is_killed_while_it_writes";
    if let Some(role) = role() {
        let role: Vec<&str> = role.splitn(3, ' ').collect();
        say(format!("lost {}", save(role[0].parse().unwrap(), role[1], Path::new(role[2]), 2.0)));
        return;
    }
    let folder = env::temp_dir().join(format!("comity-candle-killed-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("model.safetensors");
    let alone = Group::single();
    save_checkpoint(&alone, &file, &rows(&alone, 1.0)).unwrap();
    let before = fs::read(&file).unwrap();
    let count = || fs::read_dir(&folder).unwrap().count();
    // Rank 0 is killed after it has made the file, rank 1 with its first row.
    for (killed, left) in [(1, 1), (0, 2)] {
        let store = store();
        let at = store.addr().to_string();
        let start = |rank: usize| {
            let may_write = if rank == killed { BLOCKS.to_string() } else { "unlimited".into() };
            start(TEST, format!("{rank} {at} {}", file.display()), &may_write)
        };
        let mut children = [start(0), start(1)];
        assert_eq!(save(2, &at, &file, 2.0), killed);
        assert_eq!(children[1 - killed].hear(), format!("lost {killed}"));
        assert_eq!(children[killed].hear_any(), None);
        children[killed].child.wait().unwrap();
        assert!(fs::read(&file).unwrap() == before, "rank {killed} was killed, and the file is another");
        assert_eq!(count(), left);
    }
    // The next save removes what the killed rank 0 left.
    save_checkpoint(&alone, &file, &rows(&alone, 3.0)).unwrap();
    assert_eq!(count(), 1);
    assert!(fs::read(&file).unwrap() != before);
    fs::remove_dir_all(folder).unwrap();
}
