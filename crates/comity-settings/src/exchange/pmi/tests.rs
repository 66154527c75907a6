//! A manager that speaks as Hydra's proxy does: what all get, bad answers, silence, tries again.

use super::*;
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    sync::{Arc, Barrier},
    thread,
};

/// Stand-in for Hydra's proxy, with the answers recorded from it.
fn manager(stream: UnixStream, values: Arc<Mutex<HashMap<String, String>>>, barrier: Arc<Barrier>) -> bool {
    let mut out = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let ask = Answer(line.into());
        let field = |name| ask.field(name).unwrap().to_owned();
        let answer = match ask.field("cmd").unwrap() {
            "init" => "response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_my_kvsname" => "my_kvsname kvsname=kvs_14338_0_1108132936_vm".into(),
            "put" => {
                assert_eq!(field("kvsname"), "kvs_14338_0_1108132936_vm");
                let before = values.lock().unwrap().insert(field("key"), field("value"));
                match before {
                    None => "put_result rc=0 msg=success".into(),
                    Some(_) => "put_result rc=-1 msg=duplicate_key".to_owned(),
                }
            }
            "barrier_in" => {
                barrier.wait();
                "barrier_out".to_owned()
            }
            "get" => match values.lock().unwrap().get(&field("key")) {
                Some(value) => format!("get_result rc=0 msg=success value={value}"),
                None => "get_result rc=-1 msg=key_not_found value=unknown".into(),
            },
            "finalize" => {
                out.write_all(b"cmd=finalize_ack\n").unwrap();
                return true;
            }
            other => panic!("{other}"),
        };
        out.write_all(format!("cmd={answer}\n").as_bytes()).unwrap();
    }
    false
}

#[test]
fn all_get_what_rank_0_puts_twice() {
    let until = Instant::now() + Duration::from_secs(10);
    let values = Arc::default();
    let barrier = Arc::new(Barrier::new(3));
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let (here, there) = UnixStream::pair().unwrap();
            let values = Arc::clone(&values);
            let barrier = Arc::clone(&barrier);
            let manager = thread::spawn(move || manager(there, values, barrier));
            thread::spawn(move || {
                let mut talk = Talk::new(here);
                for text in ["10.0.0.1:5000", "[fe80::1%4]:5001"] {
                    let got = talk.share((rank == 0).then_some(text), until).unwrap();
                    assert_eq!(got, text);
                }
                talk.finalize(until).unwrap();
                assert!(talk.share(None, until).is_err(), "nothing can be said after the end");
                assert!(manager.join().unwrap(), "finalize was said");
            })
        })
        .collect();
    for rank in ranks {
        rank.join().unwrap();
    }
}

#[test]
fn a_rank_that_comes_when_the_others_have_tried_in_vain_gets_the_text_of_now() {
    let values = Arc::default();
    let all = Arc::new(Barrier::new(2));
    let (late, come) = std::sync::mpsc::channel();
    let [zero, one] = [(); 2].map(|()| {
        let (here, there) = UnixStream::pair().unwrap();
        let values = Arc::clone(&values);
        let all = Arc::clone(&all);
        thread::spawn(move || manager(there, values, all));
        Talk::new(here)
    });
    let soon = |ms| Instant::now() + Duration::from_millis(ms);
    let first = thread::spawn(move || {
        let mut talk = zero;
        for i in 0..2 {
            let e = talk.share(Some(&format!("old-{i}")), soon(50)).unwrap_err();
            assert!(e.to_string().contains("not all ranks came"), "{e}");
        }
        late.send(()).unwrap();
        ["new", "newer"].map(|text| talk.share(Some(text), soon(10_000)).unwrap())
    });
    come.recv().unwrap();
    let mut talk = one;
    let got = [(); 2].map(|()| talk.share(None, soon(10_000)).unwrap());
    assert_eq!(got, ["new", "newer"]);
    assert_eq!(first.join().unwrap(), got);
}

#[test]
fn bad_answers_are_errors_and_stay() {
    let endless = [b'x'; MOST_LINE + 10];
    for bad in [
        &b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n"[..],
        b"cmd=response_to_init rc=0\ncmd=my_kvsname rc=0\n",
        b"hello\n",
        b"\n",
        b"\xff\xfe\n",
        b"",
        b"cmd=response_to_init",
        &endless,
    ] {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bad).unwrap();
        there.shutdown(std::net::Shutdown::Write).unwrap();
        let mut talk = Talk::new(here);
        let until = Instant::now() + Duration::from_secs(5);
        let first = talk.share(None, until).unwrap_err();
        assert!(first.to_string().contains("process manager"), "{first}");
        assert_eq!(talk.share(None, until).unwrap_err(), first);
    }
}

#[test]
fn a_silent_manager_is_not_waited_for() {
    let (here, _there) = UnixStream::pair().unwrap();
    let start = Instant::now();
    let e = Talk::new(here).share(None, start + Duration::from_millis(100)).unwrap_err();
    assert!(e.to_string().contains("in time"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_descriptor_that_is_not_open_names_the_variable() {
    let until = Instant::now() + Duration::from_secs(1);
    let e = PmiExchange::new(1_000_000).share(1, 2, None, until).unwrap_err();
    assert!(e.to_string().contains("PMI_FD=1000000"), "{e}");
}
