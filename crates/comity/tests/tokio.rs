//! The example with tokio does what it says.

#[path = "../examples/tokio.rs"]
mod example;

use comity::Group;
use std::thread;

#[test]
fn ranks_on_runtimes_of_one_thread_average() {
    let ranks = Group::local(2).unwrap().into_iter().map(|group| {
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mine = vec![group.rank() as f32; 3];
            runtime.block_on(example::average(&group, mine)).unwrap()
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        assert_eq!(rank.join().unwrap(), [0.5; 3]);
    }
}

#[test]
fn the_whole_of_it_ends() {
    example::main().unwrap();
}
