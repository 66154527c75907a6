//! Pauses within the limit: nobody is given up, and every sum is right.
use crate::crew::{Crew, ms};
use rustix::process::Signal;
use std::{thread, time::Duration};

/// Stop `who` of 4 for `pause` amid all-reduces; then all end in good order, and every sum was right.
fn ride_through(who: &[usize], pause: Duration, limits: [&str; 4]) {
    let mut crew = Crew::start_some("ops", 4, 0..4, |r| vec![("COMITY_DETECTION", limits[r])]);
    crew.hear("ready", 0..4);
    thread::sleep(ms(200));
    for r in who {
        crew.signal(*r, Signal::STOP);
    }
    thread::sleep(pause);
    for r in who {
        crew.signal(*r, Signal::CONT);
    }
    thread::sleep(ms(300));
    crew.tell(0, "end");
    crew.hear("done", 0..4);
}

#[test]
fn pauses_within_the_limit_of_the_most_patient_are_ridden_through() {
    thread::scope(|s| {
        for (who, pause, limits) in [
            (&[1][..], 400, ["1"; 4]),
            (&[3], 4000, ["normal"; 4]),
            (&[0, 1, 2, 3], 2500, ["1"; 4]),
            (&[2], 1200, ["0.4", "fast", "0.4", "patient"]),
            (&[2], 1500, ["0.3", "off", "0.3", "0.3"]),
        ] {
            s.spawn(move || ride_through(who, ms(pause), limits));
        }
    });
}

#[test]
fn a_job_that_ctrl_z_stopped_goes_on() {
    // The pauses count neither as silence nor as time of the call that they interrupt.
    let env = [("COMITY_DETECTION", "2"), ("COMITY_TIMEOUT", "2")];
    let mut crew = Crew::launch("ops", 4, &env);
    crew.hear("ready", 0..4);
    // Longer than the limits, twice.
    for _ in 0..2 {
        thread::sleep(ms(2000));
        crew.signal_launcher(Signal::TSTP);
        thread::sleep(ms(3000));
        crew.signal_launcher(Signal::CONT);
    }
    thread::sleep(ms(300));
    crew.tell(0, "end");
    crew.hear("done", 0..4);
    assert_eq!(crew.code(), Some(0));
}
