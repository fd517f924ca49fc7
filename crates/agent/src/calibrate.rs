//! Calibration: the agent deploys the chains that `measure` measures, and stores the costs.

use std::path::Path;

use myelin_measure::calibrate::{self, Chains};
use myelin_packet::sojourn::Histogram;

use crate::Monitor;
use crate::api::{ApiError, CalibrateRequest, ChainSource, ChainUp, DownReply, Event};
use crate::deploy::UpOptions;
use crate::engine::{Engine, MeasurementGuard};

impl Chains for Engine {
    fn up(&self, source: &ChainSource) -> Result<Vec<ChainUp>, ApiError> {
        self.up(source, UpOptions::default())
    }

    fn down(&self, name: &str) -> Result<DownReply, ApiError> {
        self.down(name)
    }

    fn sojourn(&self, name: &str) -> Result<Vec<Histogram>, ApiError> {
        self.sojourn(name)
    }
}

impl Engine {
    /// Measures the costs of this machine and stores them in the request's file.
    ///
    /// # Errors
    /// A chain cannot be deployed or measured, or the file cannot be written.
    pub fn calibrate(
        &self,
        request: &CalibrateRequest,
        monitor: &Monitor<'_>,
    ) -> Result<(), ApiError> {
        let _counted = MeasurementGuard::new(&self.measurements);
        let costs = calibrate::calibrate(self, request.quick, monitor)?;
        calibrate::save_costs(Path::new(&request.file), &costs)?;
        (monitor.emit)(Event::Costs(Box::new(costs)));
        Ok(())
    }
}
