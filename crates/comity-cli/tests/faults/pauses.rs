//! Pauses within the limit: nobody is given up, and every sum is right.
use crate::crew::{Crew, ms};
use rustix::process::Signal;
use std::{thread, time::Duration};

/// Stop `who` of 4 for `pause` amid all-reduces; then all end in good order, and every sum was right.
fn ride_through(who: &[usize], pause: Duration, env: impl Fn(usize) -> &'static str) {
    let mut crew = Crew::start_some("ops", 4, 0..4, |r| vec![("COMITY_DETECTION", env(r))]);
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
fn a_short_blip_is_ridden_through() {
    ride_through(&[1], ms(400), |_| "1");
}

#[test]
fn a_blip_of_four_seconds_is_ridden_through() {
    ride_through(&[3], ms(4000), |_| "normal");
}

#[test]
fn a_job_that_is_stopped_as_a_whole_goes_on() {
    ride_through(&[0, 1, 2, 3], ms(2500), |_| "1");
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

#[test]
fn the_most_patient_rank_decides() {
    ride_through(&[2], ms(1200), |r| ["0.4", "fast", "0.4", "patient"][r]);
}

#[test]
fn silence_can_be_allowed() {
    ride_through(&[2], ms(1500), |r| ["0.3", "off", "0.3", "0.3"][r]);
}
