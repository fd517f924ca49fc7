//! `coding-loss`: residual loss and in-order delay over a lossy link, with and without network
//! coding.
//!
//! This process calls `rlnc-encode`, `lossy-link` and `rlnc-decode` one after another on a
//! simulated clock, with a packet every 50 us. So figures depend only on codes and losses, and a
//! seed gives the same figures on every machine. `calvin-advanced` measures the processing time.

use std::collections::BTreeMap;

use myelin_dataplane::feed::{HEADERS, frame};
use myelin_functions::{Batch, Emitter, Function, Packet, instantiate};
use myelin_measure::function_config;
use myelin_metrics::stats::Deployments;
use myelin_packet::{Meta, parse};
use myelin_spec::{FunctionConfig, LossyLinkConfig};

use crate::figures::Column::Mean;
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Findings, Row, Session};

/// Codes: name, and coder before the link, if any.
const CODES: [(&str, Option<&str>); 3] = [
    ("none", None),
    (
        "sliding window of 8",
        Some("kind: rlnc-encode, config: { code: window, window: 8, redundancy: 0.25 }"),
    ),
    (
        "block of 32",
        Some("kind: rlnc-encode, config: { code: block, block: 32, redundancy: 0.25 }"),
    ),
];
const NONE: usize = 0;
const WINDOW: usize = 1;
const BLOCK: usize = 2;
const DECODER: &str = "kind: rlnc-decode, config: { delivery: in-order }";
const LOSS_PERCENT: [u32; 6] = [1, 2, 5, 10, 15, 20];
/// Kinds of loss: name, and length of a burst.
const LOSSES: [(&str, Option<u32>); 2] = [("independent", None), ("bursts of 4", Some(4))];
/// Time between two packets, ns.
const SPACING_NS: u64 = 50_000;
const PAYLOAD: usize = 256;
/// Largest residual loss over the link's, if the redundancy is several times the loss.
const RESIDUAL_BOUND: f64 = 0.1;
const FEW_PERCENT: u32 = 5;

const FIGURES: &[Figure<Transfer>] = &[
    Figure::new("residual_loss", Mean(""), Transfer::residual),
    Figure::new("in_order_delay_mean", Mean("_us"), Transfer::mean_us),
    Figure::new("in_order_delay_p99", Mean("_us"), Transfer::p99_us),
    Figure::new("sent_of_source", Mean(""), Transfer::overhead),
];

/// One for each kind of loss, share and code.
fn subjects() -> Subjects<Transfer, 3> {
    Subjects::new(FIGURES, [LOSSES.len(), LOSS_PERCENT.len(), CODES.len()])
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "coding-loss",
    about: "residual loss and in-order delay over links that lose 1 to 20 %, by themselves and in bursts: sliding window, block code, no code",
    differs: "",
    run,
    plots: include_str!("../../plots/coding-loss.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(400, 4000, 20_000);
    let subjects = subjects();
    let sampling = Sampling::of("codes over lossy links");
    let mut rounds = BTreeMap::new();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |at| {
            let [losses, percent, code] = at;
            let round = rounds.entry(at).or_insert(0);
            *round += 1;
            // All codes of a round have the same losses, as far as they send equally many packets.
            let link = LossyLinkConfig {
                loss_ppm: LOSS_PERCENT[percent] * 10_000,
                burst: LOSSES[losses].1,
                seed: Some(*round),
            };
            simulate_transfer(CODES[code].1, link, packets)
        })
    };
    let (samples, ()) =
        session.sample(sampling, findings, deploy, |samples, ()| claims(samples))?;
    findings.rows = subjects.rows(&samples, |[losses, percent, code]| {
        Row::of("codes")
            .with("code", CODES[code].0)
            .with("losses", LOSSES[losses].0)
            .with("loss_percent", LOSS_PERCENT[percent])
    });
    findings.set("packets_a_round", packets);
    findings.set("spacing_us", SPACING_NS / 1000);
    findings.set("payload_bytes", PAYLOAD);
    findings.set("redundancy", 0.25);
    findings.set("clock", "simulated: delays contain waiting, not processing");
    Ok(())
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let mut claims = Vec::new();
    for [losses, percent, code] in subjects().all() {
        if code != NONE {
            continue;
        }
        let link = format!("{} % loss, {}", LOSS_PERCENT[percent], LOSSES[losses].0);
        let [none, window, block] =
            [NONE, WINDOW, BLOCK].map(|code| subjects().at(samples, [losses, percent, code]));
        // With more losses than a code can repair, the result depends on when the
        // decoder stops waiting.
        let few = LOSSES[losses].1.is_none() && LOSS_PERCENT[percent] <= FEW_PERCENT;
        let mut claim = |id: String, ratio, bound| {
            claims.push(if few {
                Claim::at_most(id, ratio, bound)
            } else {
                Claim::shown(id, ratio)
            });
        };
        for (code, transfer) in [(WINDOW, &window), (BLOCK, &block)] {
            claim(
                format!("residual loss, {} / none, {link}", CODES[code].0),
                transfer.ratio(&none, "residual_loss"),
                RESIDUAL_BOUND,
            );
        }
        claim(
            format!(
                "mean in-order delay, {} / {}, {link}",
                CODES[WINDOW].0, CODES[BLOCK].0
            ),
            window.ratio(&block, "in_order_delay_mean"),
            1.0,
        );
    }
    claims
}

/// Results of a round.
#[derive(Debug, Clone, Default)]
struct Transfer {
    source: u64,
    /// Packets sent to the link.
    sent: u64,
    lost: u64,
    /// Delays of delivered packets, ascending, ns.
    delays_ns: Vec<u64>,
}

impl Transfer {
    fn residual(&self) -> f64 {
        self.lost as f64 / self.source as f64
    }

    fn overhead(&self) -> f64 {
        self.sent as f64 / self.source as f64
    }

    fn mean_us(&self) -> f64 {
        self.delays_ns.iter().sum::<u64>() as f64 / self.delays_ns.len().max(1) as f64 / 1e3
    }

    fn p99_us(&self) -> f64 {
        let rank = self.delays_ns.len() * 99 / 100;
        self.delays_ns.get(rank).map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

/// Sends packets through the coder, over the link, through the decoder.
fn simulate_transfer(
    coder: Option<&str>,
    link: LossyLinkConfig,
    packets: u64,
) -> Result<Transfer, Error> {
    let files = BTreeMap::new();
    let create = |config: &FunctionConfig| {
        let function = instantiate(config).map_err(|error| Error::Internal(error.to_string()))?;
        Ok::<_, Error>(SimulatedFunction::new(function))
    };
    let mut coder = coder
        .map(|coder| create(&function_config::parse(coder, &files)?))
        .transpose()?;
    let mut decoder = coder
        .is_some()
        .then(|| create(&function_config::parse(DECODER, &files)?))
        .transpose()?;
    let mut link = myelin_functions::lossy_link::LossyLink::new(link);
    let mut out = Transfer {
        source: packets,
        ..Transfer::default()
    };
    let mut delivered = vec![false; packets as usize];
    // After the last packet the clock continues until coder and decoder are empty.
    for tick in 0..packets + DRAIN {
        let now_ns = (tick + 1) * SPACING_NS;
        let source = (tick < packets).then(|| packet(tick));
        let mut on_link = match &mut coder {
            Some(coder) => coder.process(source.into_iter().collect(), now_ns),
            None => source.into_iter().collect(),
        };
        out.sent += on_link.len() as u64;
        on_link.retain(|_| !link.draw_loss());
        let arrived = match &mut decoder {
            Some(decoder) => decoder.process(on_link, now_ns),
            None => on_link,
        };
        for arrival in arrived {
            let number = arrival.get(HEADERS..).and_then(<[u8]>::first_chunk);
            let number = number.map_or(u64::MAX, |number| u64::from_be_bytes(*number));
            let Some(before) = delivered
                .get_mut(number as usize)
                .filter(|_| arrival == packet(number))
            else {
                return Err(Error::Internal(format!(
                    "the decoder delivered packet {number}, which was never sent"
                )));
            };
            if std::mem::replace(before, true) {
                return Err(Error::Internal(format!(
                    "the decoder delivered packet {number} twice"
                )));
            }
            out.delays_ns.push(now_ns - (number + 1) * SPACING_NS);
        }
    }
    out.lost = delivered.iter().filter(|delivered| !**delivered).count() as u64;
    out.delays_ns.sort_unstable();
    Ok(out)
}

/// The packet with this number.
fn packet(number: u64) -> Vec<u8> {
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    frame(&payload)
}

/// Ticks after the last packet, more than coder and decoder wait.
const DRAIN: u64 = 1000;

/// A function on the simulated clock.
struct SimulatedFunction {
    function: Box<dyn Function>,
    due_ns: u64,
    every_ns: Option<u64>,
}

/// Stores emitted frames.
#[derive(Default)]
struct Emitted(Vec<Vec<u8>>);

impl Emitter for Emitted {
    fn emit(&mut self, _origin: &Meta, frame: &[u8]) {
        self.0.push(frame.to_vec());
    }

    fn reply(&mut self, _origin: &Meta, _frame: &[u8]) {}
}

impl SimulatedFunction {
    fn new(function: Box<dyn Function>) -> Self {
        Self {
            every_ns: function.timer_period_ns(),
            function,
            due_ns: 0,
        }
    }

    /// Processes frames one by one, as a worker with batch 1, and then runs its timer. Returns its
    /// output.
    fn process(&mut self, frames: Vec<Vec<u8>>, now_ns: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for frame in frames {
            let mut buffer = vec![0; BUFFER];
            buffer[HEADROOM..HEADROOM + frame.len()].copy_from_slice(&frame);
            let Ok(headers) = parse(&frame) else { continue };
            let meta = Meta::new(now_ns, 1, 1, 0, &headers);
            let Some(packet) = Packet::new(&mut buffer, HEADROOM, frame.len(), meta, 0) else {
                continue;
            };
            let mut batch = Batch::with_capacity(1);
            batch.push(packet);
            let mut emitted = Emitted::default();
            self.function.set_time(now_ns);
            self.function.process_batch(&mut batch, &mut emitted);
            out.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
            out.extend(emitted.0);
        }
        if let Some(every_ns) = self.every_ns.filter(|_| self.due_ns <= now_ns) {
            self.due_ns = now_ns + every_ns;
            let mut emitted = Emitted::default();
            self.function.run_timer(now_ns, &mut emitted);
            out.extend(emitted.0);
        }
        out
    }
}

const BUFFER: usize = 2048;
const HEADROOM: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(loss_ppm: u32) -> LossyLinkConfig {
        LossyLinkConfig {
            loss_ppm,
            burst: None,
            seed: Some(1),
        }
    }

    #[test]
    fn without_loss_all_packets_are_delivered_at_once() {
        for (name, code) in CODES {
            let one = simulate_transfer(code, link(0), 500).unwrap();
            assert_eq!((one.lost, one.p99_us()), (0, 0.0), "{name}");
            let overhead = one.overhead();
            let wanted = if code.is_some() { 1.25 } else { 1.0 };
            assert!((overhead - wanted).abs() < 0.02, "{name}: {overhead}");
        }
    }

    #[test]
    fn only_codes_repair_losses() {
        let [none, window, block] =
            CODES.map(|(_, code)| simulate_transfer(code, link(50_000), 2000).unwrap());
        assert!((0.03..0.07).contains(&none.residual()), "{none:?}");
        assert!(window.residual() < none.residual() / 3.0);
        assert!(block.residual() < none.residual() / 10.0);
        assert!(none.delays_ns.iter().all(|ns| *ns == 0));
    }
}
