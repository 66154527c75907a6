//! Number of this host among those that start their own launchers, as a user gives it.
use crate::request::section;

/// Number of this host, and the meeting place.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NodeRequest {
    /// Do without ssh: each of N hosts starts its own launcher, with the same COMITY_KEY_FILE or --insecure
    #[arg(hide_short_help = true, long, value_name = "N", requires_all = ["node_rank", "rendezvous"], conflicts_with_all = ["hosts", "hostfile", "total", "max_restarts", "metrics"], value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = section::HOSTS)]
    pub nnodes: Option<u32>,

    /// Number this host among them, from 0: ranks are numbered in this order
    #[arg(hide_short_help = true, long, value_name = "R", requires_all = ["nnodes", "rendezvous"], value_parser = clap::value_parser!(u32).range(..4096), help_heading = section::HOSTS)]
    pub node_rank: Option<u32>,

    /// Meet the other launchers here: names or addresses of node 0's host by which this host knows it, with commas between; the default port is 29400
    #[arg(hide_short_help = true, long, value_name = "HOST[:PORT],...", requires_all = ["nnodes", "node_rank"], help_heading = section::HOSTS)]
    pub rendezvous: Option<String>,
}

impl NodeRequest {
    /// Returns whether this launcher is one of several.
    pub fn is_given(&self) -> bool {
        self.nnodes.is_some()
    }
}
