//! Checks the ring with loom, a memory-model checker. For short rings and few descriptors, loom
//! tries every interleaving and every value that a weak memory model allows. The gate bounds the
//! interleavings of the longer models; their thorough forms do not.
//!
//! Only the words are loom's; the algorithm is the production code. So the tests need no
//! `--cfg loom` and run with all others.

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::{Consumer, Observer, Producer, Word, len_of};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl std::ops::Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn words(entries: u32, slot: usize) -> Words {
    let words = (0..len_of(entries, slot)).map(|_| AtomicU64::new(0));
    Words(Arc::new(words.collect()))
}

/// Returns a model with at most `preemptions` changes of a running thread, or with any number.
fn model(preemptions: Option<usize>) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model
}

#[test]
fn descriptors_arrive_complete_and_in_order() {
    check_descriptors(Some(3));
}

#[test]
#[ignore = "thorough: tries every interleaving"]
fn descriptors_arrive_complete_and_in_order_in_any_interleaving() {
    check_descriptors(None);
}

/// Both words of every descriptor arrive, in order, also when the ring wraps.
fn check_descriptors(preemptions: Option<usize>) {
    model(preemptions).check(|| {
        let words = words(2, 2);
        let producer_words = words.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::<_, 2>::new(producer_words, 2).unwrap();
            let mut next = 1;
            while next <= 3 {
                match producer.enqueue(&[[next, !next]]) {
                    0 => thread::yield_now(),
                    _ => next += 1,
                }
            }
        });
        let mut consumer = Consumer::<_, 2>::new(words, 2).unwrap();
        let mut expected = 1;
        while expected <= 3 {
            let mut out = [[0; 2]; 2];
            let count = consumer.dequeue(&mut out);
            for descriptor in &out[..count] {
                assert_eq!(*descriptor, [expected, !expected]);
                expected += 1;
            }
            if count == 0 {
                thread::yield_now();
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    check_wake_ups(Some(3));
}

#[test]
#[ignore = "thorough: tries every interleaving"]
fn no_wake_up_is_lost_in_any_interleaving() {
    check_wake_ups(None);
}

/// The producer wakes a sleeping consumer. If neither side saw the other, loom would report a
/// deadlock.
fn check_wake_ups(preemptions: Option<usize>) {
    model(preemptions).check(|| {
        let words = words(2, 1);
        let wakeup = Arc::new(Notify::new());
        let (producer_words, ring) = (words.clone(), Arc::clone(&wakeup));
        let producer = thread::spawn(move || {
            let mut producer = Producer::<_, 1>::new(producer_words, 2).unwrap();
            for value in 1..=2 {
                assert_eq!(producer.enqueue(&[[value]]), 1);
                if producer.must_wake() {
                    ring.notify();
                }
            }
        });
        let mut consumer = Consumer::<_, 1>::new(words, 2).unwrap();
        let mut expected = 1;
        while expected <= 2 {
            let mut out = [[0]];
            if consumer.dequeue(&mut out) == 1 {
                assert_eq!(out[0], [expected]);
                expected += 1;
                continue;
            }
            if consumer.arm() {
                wakeup.wait();
            }
            consumer.disarm();
        }
        producer.join().unwrap();
    });
}

/// An observer never sees more entries than the ring holds, or counters that decrease.
#[test]
fn an_observer_sees_consistent_counters() {
    loom::model(|| {
        let words = words(2, 1);
        let (producer_words, seen) = (words.clone(), words.clone());
        let producer = thread::spawn(move || {
            let mut producer = Producer::<_, 1>::new(producer_words, 2).unwrap();
            assert_eq!(producer.enqueue(&[[1], [2]]), 2);
        });
        let observer = thread::spawn(move || {
            let observer = Observer::new(seen, 2).unwrap();
            let (out, occupancy, into) = (
                observer.dequeued(),
                observer.occupancy(),
                observer.enqueued(),
            );
            assert!(occupancy <= 2 && out <= into && into <= 2);
            assert!(observer.dequeued() >= out);
        });
        let mut consumer = Consumer::<_, 1>::new(words, 2).unwrap();
        let mut out = [[0]; 2];
        let taken = consumer.dequeue(&mut out);
        assert!(matches!(
            (taken, out),
            (0, _) | (1, [[1], _]) | (2, [[1], [2]])
        ));
        producer.join().unwrap();
        observer.join().unwrap();
    });
}
