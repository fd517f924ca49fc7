//! The cores whose workers take turns, as a table.

use myelin_api::CoreStatus;

use crate::sla::format_short;
use crate::terminal::{Column, digits_or_dash, listing};

/// A core between two readings.
struct Interval {
    core: u32,
    policy: String,
    seconds: f64,
    switches: u64,
    switch_us: Option<f64>,
    /// Shares of the interval.
    busy: f64,
    scheduler: f64,
    empty_reads: u64,
    tasks: usize,
}

/// Formats what the tasks of each core did between two readings, `seconds` apart; an empty text
/// without such cores.
pub fn cores(before: &[CoreStatus], now: &[CoreStatus], seconds: f64, width: u16) -> String {
    let intervals: Vec<Interval> = now
        .iter()
        .map(|now| {
            let known = before.iter().find(|before| before.core == now.core);
            // After a change the counters begin anew.
            let before = known.filter(|before| before.switches <= now.switches);
            interval(before, now, seconds)
        })
        .collect();
    if intervals.is_empty() {
        return String::new();
    }
    let columns: [Column<Interval>; 8] = [
        (">CORE", |core| core.core.to_string()),
        ("SHARING", |core| core.policy.clone()),
        (">TASKS", |core| core.tasks.to_string()),
        (">SWITCHES/s", |core| {
            format_short(core.switches as f64 / core.seconds)
        }),
        (">SWITCH us", |core| digits_or_dash(1, core.switch_us)),
        (">IN TURNS %", |core| format!("{:.0}", core.busy * 100.0)),
        (">SCHEDULER %", |core| {
            format!("{:.2}", core.scheduler * 100.0)
        }),
        (">EMPTY READS/s", |core| {
            format_short(core.empty_reads as f64 / core.seconds)
        }),
    ];
    listing(&columns, &intervals, width)
}

fn interval(before: Option<&CoreStatus>, now: &CoreStatus, seconds: f64) -> Interval {
    let sum = |status: &CoreStatus, figure: fn(&myelin_api::TaskStatus) -> f64| -> f64 {
        status.tasks.iter().map(figure).sum()
    };
    let since =
        |figure: &dyn Fn(&CoreStatus) -> f64| (figure(now) - before.map_or(0.0, figure)).max(0.0);
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let share = |us: f64| us / 1e6 / seconds;
    Interval {
        core: now.core,
        policy: match &now.mechanism {
            Some(mechanism) => format!("{}, {mechanism}", now.policy),
            None => now.policy.clone(),
        },
        seconds,
        switches: since(&|status| status.switches as f64) as u64,
        switch_us: now.switch_us,
        busy: share(since(&|status| sum(status, |task| task.run_us))),
        scheduler: share(since(&|status| status.decide_us)),
        empty_reads: since(&|status| sum(status, |task| task.empty_reads as f64)) as u64,
        tasks: now.tasks.len(),
    }
}

#[cfg(test)]
mod tests {
    use myelin_api::TaskStatus;

    use super::*;

    fn status(switches: u64) -> CoreStatus {
        let task = |worker: &str| TaskStatus {
            worker: worker.to_owned(),
            alive: true,
            turns: switches / 2,
            run_us: switches as f64 * 200.0,
            wait_us: 0.0,
            empty_reads: switches,
        };
        CoreStatus {
            core: 1,
            policy: "unis".to_owned(),
            mechanism: None,
            switches,
            switch_us: Some(3.25),
            takeovers: 0,
            decisions: switches,
            decide_us: switches as f64 * 5.0,
            tasks: vec![task("a"), task("b")],
        }
    }

    #[test]
    fn a_core_shows_its_rates_and_begins_anew_with_its_counters() {
        assert_eq!(cores(&[], &[], 1.0, 100), "");
        let table = cores(&[status(1000)], &[status(2000)], 1.0, 100);
        let row: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            ["1", "unis", "2", "1.00k", "3.2", "40", "0.50", "2.00k"],
            "{table}"
        );
        let flips = CoreStatus {
            mechanism: Some("flip".to_owned()),
            ..status(2000)
        };
        let table = cores(&[status(1000)], &[flips], 1.0, 100);
        assert!(table.contains(" unis, flip "), "{table}");
        let fresh = cores(&[status(9000)], &[status(100)], 1.0, 100);
        assert!(fresh.lines().last().unwrap().contains(" 100 "), "{fresh}");
        assert!(table.lines().all(|line| line.chars().count() <= 100));
    }
}
