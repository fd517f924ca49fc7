//! `lossy-link`: drops single packets or bursts of packets, as a radio link does.

use myelin_packet::loss_model::{Loss, LossModel};
use myelin_spec::LossyLinkConfig;

use crate::{Emitter, Function, Packet, Verdict};

/// A lossy link after Gilbert's model.
#[derive(Debug)]
pub struct LossyLink(LossModel);

impl LossyLink {
    /// Makes a link in the good state.
    pub fn new(config: LossyLinkConfig) -> Self {
        let loss = Loss {
            ppm: config.loss_ppm,
            burst: config.burst,
        };
        let seed = config.seed.unwrap_or_else(|| fastrand::u64(..));
        Self(LossModel::new(loss, seed))
    }

    /// Draws the next state. Returns whether the link loses the packet.
    #[inline]
    pub fn draw_loss(&mut self) -> bool {
        self.0.draw_loss()
    }
}

impl Function for LossyLink {
    fn process(&mut self, _packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        if self.draw_loss() {
            Verdict::Drop
        } else {
            Verdict::Forward
        }
    }
}
