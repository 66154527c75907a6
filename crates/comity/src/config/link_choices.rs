//! Choice of links, and their options: setters.

use super::{BackendKind, Config};
use crate::{Error, LinkKind, Result};

impl Config {
    /// The kinds of link that may be used; default: shared memory within a host, between hosts RDMA where both have a device for
    /// the pair, else TCP.
    ///
    /// ```
    /// use comity::{Config, LinkKind};
    ///
    /// let config = Config::new(0, 1).links([LinkKind::Tcp]);
    /// ```
    pub fn links(mut self, kinds: impl IntoIterator<Item = LinkKind>) -> Self {
        // Threads of one process are never connected through a Config, and MPI makes its own links.
        self.links = kinds.into_iter().filter(|kind| LinkKind::choices().any(|k| k == *kind)).collect();
        self
    }

    /// Backend that carries out the calls; default [`BackendKind::Any`]. With [`BackendKind::Mpi`] rank and size come from MPI.
    ///
    /// ```
    /// use comity::{BackendKind, Config};
    ///
    /// let config = Config::new(0, 1).backend(BackendKind::Any);
    /// ```
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.backend = kind;
        self
    }

    /// The RDMA devices that lead from each rank to each other: a file's path or the JSON itself, in the form of MLX's
    /// `MLX_IBV_DEVICES`: `[[null, "rdma_en5"], ["rdma_en4", null]]`. Default: the device that has the address of the pair's TCP
    /// connection.
    ///
    /// # Errors
    /// [`Error::Config`] when it cannot be read or is no square matrix.
    ///
    /// ```
    /// let matrix = r#"[[null, "rdma_en5"], ["rdma_en4", null]]"#;
    /// let config = comity::Config::new(0, 2).devices(matrix)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn devices(mut self, matrix: &str) -> Result<Self> {
        self.transports.set_devices(matrix).map_err(|why| {
            let words = format!("the device matrix {} {why}", crate::address::shown(matrix));
            let e = Error::setting("devices", matrix, words);
            why.place(e)
        })?;
        Ok(self)
    }

    /// The CUDA device of this rank for [`BackendKind::Nccl`], by its number among those that this process sees; default: by the
    /// rank's number on its host.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).device(1);
    /// ```
    pub fn device(mut self, device: u32) -> Self {
        self.device = Some(device);
        self
    }

    /// TCP connections per pair of addresses; the larger wish of a pair of ranks holds. If the number is even, each direction has half for
    /// its long messages; short ones take the first both ways. Default: 15, or fewer in a job of more than 17 ranks, where a round trip
    /// takes more than 10 ms; 2 where a rank of the pair has [threads for sending](Self::send_threads) and the lower one a single address;
    /// else 1.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).connections(4);
    /// ```
    pub fn connections(mut self, n: usize) -> Self {
        self.transports.set_connections(n);
        self
    }

    /// Number of threads that may send long messages over TCP beside the rank's own, while others are received: one a link, for links of two
    /// [connections](Self::connections) in all. Default: one for every four cores of this rank's share of its host.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).send_threads(0);
    /// ```
    pub fn send_threads(mut self, n: usize) -> Self {
        self.transports.set_send_threads(n);
        self
    }
}
