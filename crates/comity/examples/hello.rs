//! Ten lines: every rank gives its number, every rank gets the sum.
//!
//! ```text
//! comity launch -n 4 -- cargo run -q --example hello
//! ```
use comity::ReduceOp;

fn main() -> comity::Result<()> {
    let group = comity::init()?;
    let mut x = [group.rank() as f32; 4];
    group.all_reduce(&mut x, ReduceOp::Sum)?;
    println!("rank {} of {}: {x:?}", group.rank(), group.size());
    Ok(())
}
