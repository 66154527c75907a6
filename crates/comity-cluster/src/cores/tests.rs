//! Trees of files as text, a line a file. `virtual.txt` and `virtual16.txt` were recorded; the others were written in the form that Linux documents.

use super::*;

fn tree(text: &'static str) -> impl Fn(&str) -> Option<String> {
    move |path| {
        let lines = text.lines().filter_map(|l| l.split_once(": "));
        lines.filter(|(name, _)| *name == path).map(|(_, content)| format!("{content}\n")).next()
    }
}

fn map(text: &'static str) -> CoreMap {
    CoreMap::read(tree(text)).unwrap()
}

const XEON: &str = include_str!("trees/xeon.txt");
const EPYC: &str = include_str!("trees/epyc.txt");
const LAPTOP: &str = include_str!("trees/laptop.txt");
const VIRTUAL: &str = include_str!("trees/virtual.txt");
const VIRTUAL_16: &str = include_str!("trees/virtual16.txt");

#[test]
fn hosts_of_every_shape_are_read() {
    for (text, words) in [
        (XEON, "2 sockets, 2 core complexes, 2 NUMA nodes, 16 cores, 32 threads"),
        (EPYC, "1 socket, 4 core complexes, 1 NUMA node, 16 cores, 32 threads"),
        (LAPTOP, "1 socket, 1 core complex, 1 NUMA node, 8 cores, 12 threads"),
        (VIRTUAL, "1 socket, 1 core complex, 1 NUMA node, 2 cores"),
        (VIRTUAL_16, "1 socket, 1 core complex, 1 NUMA node, 16 cores"),
        ("cpu/online: 0-2\n", "1 socket, 1 core complex, 1 NUMA node, 3 cores"),
    ] {
        assert_eq!(map(text).words(), words);
    }
    assert_eq!(CoreMap::read(|_| None), None);
    assert_eq!(CoreMap::read(|_| Some("nonsense".into())), None);
}

#[test]
fn neighbours_get_neighbouring_cores() {
    let xeon = map(XEON).places(BindTo::Core, 16).unwrap();
    // Numbered in turns: the first socket has the even ones, and a core its two threads.
    assert_eq!(
        (&xeon[0], &xeon[1], &xeon[8], &xeon[15]),
        (&vec![0, 16], &vec![2, 18], &vec![1, 17], &vec![15, 31])
    );
    let epyc = map(EPYC).places(BindTo::Core, 6).unwrap();
    assert_eq!((&epyc[3], &epyc[4]), (&vec![3, 19], &vec![4, 20]));
    let laptop = map(LAPTOP).places(BindTo::Core, 8).unwrap();
    assert_eq!(
        (&laptop[0], &laptop[3], &laptop[4], &laptop[7]),
        (&vec![0, 1], &vec![6, 7], &vec![8], &vec![11])
    );
    let mut all = xeon.concat();
    all.sort_unstable();
    assert_eq!(all, (0..32).collect::<Vec<_>>(), "each is given once");
}

#[test]
fn complexes_are_filled_one_after_the_other() {
    let epyc = map(EPYC);
    let complex =
        |i: usize| [4 * i..4 * i + 4, 4 * i + 16..4 * i + 20].into_iter().flatten().collect::<Vec<_>>();
    let few = epyc.places(BindTo::Complex, 4).unwrap();
    assert!(few.iter().all(|p| *p == complex(0)), "{few:?}");
    let more = epyc.places(BindTo::Complex, 6).unwrap();
    assert_eq!((&more[3], &more[4]), (&complex(0), &complex(1)));
    // More ranks than cores: as many on each.
    let crowd = epyc.places(BindTo::Complex, 64).unwrap();
    for i in 0..4 {
        assert_eq!(crowd.iter().filter(|p| **p == complex(i)).count(), 16);
    }
    assert!(crowd.is_sorted());
}

#[test]
fn only_what_is_allowed_is_given() {
    // As a control group or taskset leaves it: half of one complex, one thread of two cores of another.
    let some = map(EPYC).allowed(&[2, 3, 18, 19, 8, 9, 99]).unwrap();
    assert_eq!(some.words(), "1 socket, 2 core complexes, 1 NUMA node, 4 cores, 6 threads");
    assert_eq!(some.places(BindTo::Core, 4).unwrap(), [vec![2, 18], vec![3, 19], vec![8], vec![9]]);
    assert_eq!(
        some.places(BindTo::Complex, 3).unwrap(),
        [vec![2, 3, 18, 19], vec![2, 3, 18, 19], vec![8, 9]]
    );
    assert_eq!(some.processors(), [2, 3, 8, 9, 18, 19]);
    assert_eq!(map(VIRTUAL).allowed(&[7]), None);
    let why = some.places(BindTo::Core, 5).unwrap_err();
    assert!(
        why.contains("5 ranks") && why.contains("4 cores (6 threads)") && why.contains("--bind-to off"),
        "{why}"
    );
}

#[test]
fn lists_are_read_and_said() {
    assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    assert_eq!(cpu_list("\n"), Some(vec![]));
    for bad in ["a", "3-1", "1-", "-1", "0-99999999999", "0-70000", "1;2"] {
        assert_eq!(cpu_list(bad), None, "{bad}");
    }
    assert_eq!(run_words(&[0, 1, 2, 3, 8, 10, 11], ","), "0-3,8,10-11");
    assert_eq!(run_words(&[], ","), "");
}
