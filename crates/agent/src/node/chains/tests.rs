use super::*;

#[test]
fn drops_of_an_earlier_discipline_are_subtracted_from_packets_out() {
    let mut past = EarlierCounts {
        counts: Counts {
            packets_in: 103,
            packets_out: 100,
            ..Counts::default()
        },
        ..EarlierCounts::default()
    };
    past.add_discipline(ShaperStats {
        full: 20,
        late: 3,
        waiting: 5,
        ..ShaperStats::default()
    });
    assert_eq!((past.counts.packets_out, past.shaper.drops()), (80, 23));
    // The SLA monitor's account must be balanced.
    past.counts.shaper = past.shaper.drops();
    assert_eq!(past.counts.missing(0), 0);
}

#[test]
fn only_packets_counted_before_the_discipline_are_subtracted() {
    let fq_stats = ShaperStats {
        delayed: 30,
        late: 20,
        big: 4,
        ..ShaperStats::default()
    };
    assert_eq!(departed_packets(76, &fq_stats), 76);
    let htb_stats = ShaperStats {
        full: 20,
        waiting: 4,
        ..ShaperStats::default()
    };
    assert_eq!(departed_packets(100, &htb_stats), 76);
    // The program's counter may be older than the counters of the discipline.
    assert_eq!(departed_packets(10, &htb_stats), 0);
}
