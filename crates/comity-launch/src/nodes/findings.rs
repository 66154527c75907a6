//! Findings of this node, and the verdict that all nodes draw from theirs.
use super::watch::{FAILING, Nodes, OVER};
use crate::machine::findings::{NodeFindings, judge, verdict_alone};
use crate::machine::{Event, Machine, Verdict};
use std::sync::atomic::Ordering;

impl Nodes {
    /// Tells the other nodes how the ranks here ended: `own` says it.
    pub(crate) fn tell_findings(&self, own: NodeFindings, is_failing: bool) {
        self.heard.news().own = Some(own);
        let state = if is_failing { OVER | FAILING } else { OVER };
        self.heard.state.fetch_or(state, Ordering::AcqRel);
    }

    /// Progress of the other nodes.
    pub(crate) fn progress(&self) -> Event {
        let news = self.heard.news();
        Event::Others { heard: news.all.is_some() || news.lost.is_some(), failing: news.failing.is_some() }
    }

    /// The last line and the exit code, of the whole job where all have said what they found. `name` has a rank's name for people.
    pub(crate) fn verdict(&self, machine: &Machine, name: &dyn Fn(usize) -> String) -> Verdict {
        let news = self.heard.news();
        match &news.all {
            Some(all) => judge(all),
            None => {
                let lost = news.lost.as_ref().map(|(node, why)| self.lost(*node, why));
                verdict_alone(machine, lost, name)
            }
        }
    }

    fn lost(&self, node: Option<usize>, why: &str) -> String {
        match node.and_then(|n| Some((n, self.words.get(n)?))) {
            Some((n, word)) => {
                let first: usize = self.words[..n].iter().map(|w| w.size).sum();
                let last = first + word.size - 1;
                let ranks =
                    if word.size == 1 { format!("rank {last}") } else { format!("ranks {first}-{last}") };
                format!("node {n} (host {}, {ranks}) was lost: {why}", word.host)
            }
            None => format!("the launchers of the nodes lost each other: {why}"),
        }
    }
}
