//! Tests the ring against a plain queue, and against peers that write invalid words.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;

const RING_ENTRIES: u32 = 8;

#[derive(Debug, Clone)]
enum RingAction {
    Put(usize),
    Take(usize),
    /// A process dies and another opens both ends.
    Reopen,
}

fn any_action() -> impl Strategy<Value = RingAction> {
    prop_oneof![
        4 => (0_usize..12).prop_map(RingAction::Put),
        4 => (0_usize..12).prop_map(RingAction::Take),
        1 => Just(RingAction::Reopen),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(actions in prop::collection::vec(any_action(), 1..200)) {
        let file = RingFile::create(RING_ENTRIES, 2).unwrap();
        let (mut producer, mut consumer) = (file.producer::<2>().unwrap(), file.consumer::<2>().unwrap());
        let observer = file.observer().unwrap();
        let mut model = VecDeque::new();
        let (mut put, mut taken) = (0_u64, 0_u64);
        for action in actions {
            match action {
                RingAction::Put(count) => {
                    let items: Vec<_> = (put..).take(count).map(|i| [i, i * i]).collect();
                    let accepted = producer.enqueue(&items);
                    prop_assert_eq!(accepted, count.min(RING_ENTRIES as usize - model.len()));
                    model.extend(&items[..accepted]);
                    put += accepted as u64;
                }
                RingAction::Take(count) => {
                    let mut out = vec![[0; 2]; count];
                    let found = consumer.dequeue(&mut out);
                    prop_assert_eq!(found, count.min(model.len()));
                    for item in &out[..found] {
                        prop_assert_eq!(Some(*item), model.pop_front());
                    }
                    taken += found as u64;
                }
                RingAction::Reopen => {
                    let again = RingFile::open(file.fd().try_clone_to_owned().unwrap()).unwrap();
                    producer = again.producer().unwrap();
                    consumer = again.consumer().unwrap();
                    prop_assert_eq!(producer.entries().collect::<Vec<_>>(), Vec::from(model.clone()));
                }
            }
            prop_assert_eq!(observer.occupancy() as usize, model.len());
            prop_assert_eq!((observer.enqueued(), observer.dequeued()), (put, taken));
            prop_assert_eq!(consumer.count_unread() as usize, model.len());
        }
    }

    /// With any words in the file, no call panics, accesses memory out of bounds, or reports more
    /// entries than the ring has.
    #[test]
    fn invalid_words_of_a_peer_cause_no_panic_and_no_excess(
        invalid_words in prop::collection::vec((prop_oneof![Just(PRODUCER), Just(CONSUMER), Just(ASLEEP)], any::<u64>(), 0_u32..20), 1..50),
    ) {
        let file = RingFile::create(RING_ENTRIES, 1).unwrap();
        let (mut producer, mut consumer) = (file.producer::<1>().unwrap(), file.consumer::<1>().unwrap());
        let words = file.producer::<1>().unwrap().memory.words;
        for (word, value, count) in invalid_words {
            words[word].store(value, Relaxed);
            prop_assert!(producer.reserve(count) <= RING_ENTRIES);
            prop_assert!(producer.enqueue(&vec![[7]; count as usize]) <= RING_ENTRIES as usize);
            let mut out = vec![[0]; count as usize];
            prop_assert!(consumer.dequeue(&mut out) <= RING_ENTRIES as usize);
            prop_assert!(file.observer().unwrap().occupancy() <= RING_ENTRIES);
            prop_assert!(file.producer::<1>().unwrap().entries().count() <= RING_ENTRIES as usize);
            file.skip::<1>(|_| true).unwrap();
        }
    }
}

#[test]
fn indices_wrap_around() {
    let words: Vec<AtomicU64> = (0..len_of(4, 1)).map(|_| AtomicU64::new(0)).collect();
    for index in [PRODUCER, CONSUMER] {
        words[index].store(u64::MAX - 1, Relaxed);
    }
    let mut producer = Producer::<_, 1>::new(&words[..], 4).unwrap();
    let mut consumer = Consumer::<_, 1>::new(&words[..], 4).unwrap();
    assert_eq!(producer.enqueue(&[[1], [2], [3], [4], [5]]), 4);
    let mut out = [[0]; 5];
    assert_eq!((consumer.dequeue(&mut out), out[3]), (4, [4]));
    assert_eq!(words[CONSUMER].load(Relaxed), 2);
}

#[test]
fn descriptors_are_visible_after_publish() {
    let file = RingFile::create(4, 1).unwrap();
    let mut producer = file.producer::<1>().unwrap();
    let mut consumer = file.consumer::<1>().unwrap();
    assert_eq!(producer.reserve(9), 4);
    producer.write(&[1]);
    assert!(producer.has_unpublished());
    assert_eq!(
        (consumer.peek(1), file.observer().unwrap().occupancy()),
        (0, 0)
    );
    producer.publish();
    assert!(!producer.has_unpublished() && !producer.must_wake());
    assert!(!consumer.arm(), "a descriptor has arrived");
    assert!(producer.must_wake());
    assert_eq!((consumer.peek(9), consumer.read()), (1, [1]));
    assert!(consumer.arm());
    assert_eq!(
        producer.reserve(4),
        3,
        "the consumer has not released its slot"
    );
    consumer.release();
    assert_eq!(producer.reserve(4), 4);
    drop(consumer);
    file.consumer::<1>().unwrap();
    assert!(!producer.must_wake(), "a new consumer is awake");
}

#[test]
fn descriptors_taken_by_a_dead_consumer_are_skipped() {
    let file = RingFile::create(8, 1).unwrap();
    file.producer::<1>().unwrap().enqueue(&[[1], [2], [3], [4]]);
    file.skip(|[value]: [u64; 1]| value < 3).unwrap();
    let mut out = [[0]; 8];
    assert_eq!(file.consumer::<1>().unwrap().dequeue(&mut out), 2);
    assert_eq!(out[..2], [[3], [4]]);
    file.skip(|_: [u64; 1]| true).unwrap();
}

#[test]
fn files_without_a_ring_are_refused() {
    for (entries, words) in [(0, 1), (3, 1), (MAX_ENTRIES * 2, 1), (8, 0), (8, 65)] {
        assert!(
            RingFile::create(entries, words).is_err(),
            "{entries} {words}"
        );
    }
    let file = RingFile::create(8, 2).unwrap();
    assert!(file.producer::<1>().is_err(), "slots of another size");
    let fd = crate::shm::anonymous_file("myelin-test", 4096).unwrap();
    assert!(RingFile::open(fd).is_err(), "no magic");
    assert!(RingFile::open(crate::shm::anonymous_file("myelin-test", 8).unwrap()).is_err());
    for (word, value) in [(ENTRIES, 1 << 19), (ENTRIES, 7), (SLOT_WORDS, u64::MAX)] {
        let file = RingFile::create(8, 2).unwrap();
        file.producer::<2>().unwrap().memory.words[word].store(value, Relaxed);
        let error = RingFile::open(file.fd().try_clone_to_owned().unwrap());
        assert!(error.is_err(), "{word} {value}");
    }
}
