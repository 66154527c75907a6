//! Arguments of `comity launch` for hosts that start their own launchers.
use crate::launch::section;
use comity_launch::NodeRequest;

/// Number of this host, and the meeting place.
#[derive(Debug, Default, clap::Args)]
pub(in crate::launch) struct NodeArgs {
    /// Do without ssh: each of N hosts starts its own launcher, with the same COMITY_KEY_FILE or --insecure
    #[arg(hide_short_help = true, long, value_name = "N", requires_all = ["node_rank", "rendezvous"], conflicts_with_all = ["hosts", "hostfile", "total", "max_restarts", "metrics"], value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = section::HOSTS)]
    pub(super) nnodes: Option<u32>,

    /// Number this host among them, from 0: ranks are numbered in this order
    #[arg(hide_short_help = true, long, value_name = "R", requires_all = ["nnodes", "rendezvous"], value_parser = clap::value_parser!(u32).range(..4096), help_heading = section::HOSTS)]
    pub(super) node_rank: Option<u32>,

    /// Meet the other launchers here: names or addresses of node 0's host by which this host knows it, with commas between; the default port is 29400
    #[arg(hide_short_help = true, long, value_name = "HOST[:PORT],...", requires_all = ["nnodes", "node_rank"], help_heading = section::HOSTS)]
    pub(super) rendezvous: Option<String>,
}

impl NodeArgs {
    /// Returns whether this launcher is one of several.
    pub(in crate::launch) fn is_given(&self) -> bool {
        self.nnodes.is_some()
    }

    /// The request that the flags make.
    pub(in crate::launch) fn request(self) -> Result<NodeRequest, String> {
        let Self { nnodes, node_rank, rendezvous } = self;
        let (Some(nodes), Some(node), Some(rendezvous)) = (nnodes, node_rank, rendezvous) else {
            return Err("--nnodes, --node-rank and --rendezvous go together".into());
        };
        Ok(NodeRequest { node: node as usize, nodes: nodes as usize, rendezvous })
    }
}
