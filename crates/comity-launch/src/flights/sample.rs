//! Flight records for tests.

use comity::tools::Flight;

/// Flight record that `rank` of 4 leaves after one call: operation, number, peer.
pub(super) fn flight(rank: usize, op: &str, seq: u64, peer: Option<usize>) -> Flight {
    let peer = peer.map_or_else(|| "null".into(), |p| p.to_string());
    let text = format!(
        r#"{{"comity_flight":1,"rank":{rank},"members":[0,1,2,3],"host":"a","pid":7,"clock_ns":9000000000,
        "unix_ns":10000000000,"error":"why {rank}","culprit":null,"made":5,
        "calls":[["{op}","f32",1048576,null,null,null,{seq},5000000000,7500000000,{peer},2000000000,"failed"]]}}"#
    );
    Flight::parse(&format!("rank-{rank}.group-0.flight.json"), text.as_bytes()).unwrap()
}
