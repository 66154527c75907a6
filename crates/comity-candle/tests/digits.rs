//! The example's training on ranks that are threads: the result must be that of one rank, and of the network without candle.

#[path = "../examples/digits/network.rs"]
mod network;

use demo::{Digits, Network, Options, Settings, largest_difference, train_on_threads};
use network::Layers;

#[test]
fn any_number_of_ranks_learns_the_same() {
    // Unoptimised code trains slowly; this is enough.
    let settings = Settings { epochs: 15, ..Settings::default() };
    let digits = Digits::read(&Options::default().data).unwrap();
    let on = |ranks| train_on_threads(ranks, &digits, &settings, Layers::new).unwrap();
    let one = on(1).remove(0);
    assert!(one.accuracy >= 0.95, "accuracy {}", one.accuracy);
    let plain = train_on_threads(1, &digits, &settings, demo::Layers::new).unwrap().remove(0);
    let far = largest_difference(&one.network.weights().unwrap(), &plain.network.weights().unwrap());
    assert!(far < 1e-5, "candle ends {far:e} from the network without it");
    for n in scope::Scope::from_env().share(vec![2, 3, 4], 3) {
        let ranks: Vec<_> = on(n).iter().map(|r| r.network.weights().unwrap()).collect();
        let far = largest_difference(&one.network.weights().unwrap(), &ranks[0]);
        assert!(far < 1e-5, "{n} ranks end {far:e} from one rank");
        assert!(ranks[1..].iter().all(|r| r == &ranks[0]), "{n} ranks");
    }
}
