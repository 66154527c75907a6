//! Engines that start one process for each node of a cluster and say only which node it is: dstack and SkyPilot.

use super::{Place, RankAndSize};
use crate::{
    HostPort, Result,
    settings::{
        Launcher, MeetingPoint,
        vars::{Vars, wrong},
    },
    transport::Variables,
};

/// Port of rank 0's store without `MASTER_PORT`: torch's usual port.
const PORT: u16 = 29_500;

/// The place that one of them gave.
pub(super) fn find(vars: &Vars<'_>) -> Result<Option<Place>> {
    match dstack(vars)? {
        None => sky_pilot(vars),
        place => Ok(place),
    }
}

fn dstack(vars: &Vars<'_>) -> Result<Option<Place>> {
    let first = vars.text("DSTACK_MASTER_NODE_IP")?.map(|ip| ("DSTACK_MASTER_NODE_IP", ip));
    let read = RankAndSize::read(vars, Launcher::Dstack, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM")?;
    let Some(found) = read else { return Ok(None) };
    let first = match first {
        Some(first) => Some(first),
        None => first_line(vars, "DSTACK_NODES_IPS")?,
    };
    place(vars, found, first).map(Some)
}

fn sky_pilot(vars: &Vars<'_>) -> Result<Option<Place>> {
    let read = RankAndSize::read(vars, Launcher::SkyPilot, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")?;
    let Some(found) = read else { return Ok(None) };
    let first = first_line(vars, "SKYPILOT_NODE_IPS")?;
    place(vars, found, first).map(Some)
}

/// The first address of a list with one a line.
fn first_line(vars: &Vars<'_>, name: &'static str) -> Result<Option<(&'static str, String)>> {
    let text = vars.text(name)?;
    Ok(text.and_then(|all| Some((name, all.split_whitespace().next()?.to_owned()))))
}

fn place(vars: &Vars<'_>, found: RankAndSize, first: Option<(&'static str, String)>) -> Result<Place> {
    let find = || {
        if vars.is_set("MASTER_ADDR") {
            return Ok(Some(MeetingPoint::Host(vars.master()?.unwrap_or_default())));
        }
        let Some((name, ip)) = first else {
            let RankAndSize { launcher, rank_is, rank, .. } = &found;
            let why = format!(
                "is set ({launcher}), but not the address of node 0; set MASTER_ADDR and MASTER_PORT"
            );
            return wrong(rank_is, &rank.to_string(), &why);
        };
        let port = vars.number("MASTER_PORT", usize::from(u16::MAX))?.and_then(|p| u16::try_from(p).ok());
        match HostPort::new(&ip, port.filter(|p| *p > 0).unwrap_or(PORT)) {
            Ok(at) => Ok(Some(MeetingPoint::Host(vec![at]))),
            Err(_) => wrong(name, &ip, "is neither a host name nor an address"),
        }
    };
    let meeting_point = found.meeting_point(vars, find, "")?;
    // Ranks of one node that the engine knows nothing of have launchers of their own, whose variables come first.
    Ok(found.place(Some((0, 1)), meeting_point, "-".into()))
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use crate::settings::Settings;

    fn of(vars: &[(&str, &str)]) -> Result<Settings> {
        read(&|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    const DSTACK: [(&str, &str); 4] = [
        ("DSTACK_NODE_RANK", "1"),
        ("DSTACK_NODES_NUM", "2"),
        ("DSTACK_MASTER_NODE_IP", "10.128.0.47"),
        ("DSTACK_NODES_IPS", "10.128.0.47\n10.128.0.48"),
    ];
    const SKY: [(&str, &str); 3] = [
        ("SKYPILOT_NODE_RANK", "2"),
        ("SKYPILOT_NUM_NODES", "3"),
        ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3"),
    ];

    #[test]
    fn nodes_meet_at_the_first_one() {
        let c = of(&DSTACK).unwrap();
        assert_eq!((c.evidence.launcher, c.rank, c.size, c.local), (Launcher::Dstack, 1, 2, Some((0, 1))));
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.128.0.47:29500");
        let c = of(&[&DSTACK[..2], &DSTACK[3..], &[("MASTER_PORT", "7000")]].concat()).unwrap();
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.128.0.47:7000");
        let c = of(&SKY).unwrap();
        assert_eq!((c.evidence.launcher, c.rank, c.size), (Launcher::SkyPilot, 2, 3));
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.0.0.1:29500");
        assert!(c.evidence.why.contains("SKYPILOT_NODE_RANK=2") && c.evidence.why.contains("SkyPilot"));
        // One node is alone, and launchers inside come first.
        let alone = of(&[("DSTACK_NODE_RANK", "0"), ("DSTACK_NODES_NUM", "1")]).unwrap();
        assert!(matches!(alone.meeting_point, MeetingPoint::Alone));
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        assert_eq!(of(&[&SKY[..], &torch].concat()).unwrap().evidence.launcher, Launcher::Torch);
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        for (vars, words) in [
            (&DSTACK[..1], &["DSTACK_NODE_RANK=1", "DSTACK_NODES_NUM"]),
            (&DSTACK[..2], &["DSTACK_NODE_RANK=\"1\"", "MASTER_ADDR"]),
            (&SKY[..2], &["SKYPILOT_NODE_RANK=\"2\"", "MASTER_ADDR"]),
            (&[SKY[0], SKY[1], ("SKYPILOT_NODE_IPS", "a;b")], &["SKYPILOT_NODE_IPS", "neither a host name"]),
            (&[("SKYPILOT_NODE_RANK", "3"), SKY[1], SKY[2]], &["SKYPILOT_NODE_RANK=3", "0 to 2"]),
        ] {
            let e = of(vars).unwrap_err().to_string();
            assert!(words.iter().all(|w| e.contains(w)), "{vars:?}: {e}");
        }
    }
}
