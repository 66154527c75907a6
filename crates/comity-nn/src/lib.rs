//! Comity for candle.
