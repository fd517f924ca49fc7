//! Calibration: the agent deploys the chains that `measure` measures, and stores the costs.

use std::collections::BTreeMap;
use std::path::Path;

use myelin_measure::calibrate::{self, Chains};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Costs;
use myelin_spec::FunctionSpec;

use crate::Monitor;
use crate::api::{ApiError, CalibrateRequest, ChainSource, ChainUp, DownReply, Event};
use crate::deploy::{UpOptions, load_costs_from};
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
        let file = Path::new(&request.file);
        let costs = if let Some(source) = &request.black_boxes {
            self.measure_black_boxes(source, request, monitor)?
        } else {
            // A file that is not valid is replaced.
            let known = load_costs_from(file).unwrap_or_default();
            Costs {
                black_boxes: known.black_boxes,
                ..calibrate::calibrate(self, request.quick, monitor)?
            }
        };
        calibrate::save_costs(file, &costs)?;
        (monitor.emit)(Event::Costs(Box::new(costs)));
        Ok(())
    }

    /// Measures each black box of a chain file, alone on its core. Returns all costs.
    fn measure_black_boxes(
        &self,
        source: &ChainSource,
        request: &CalibrateRequest,
        monitor: &Monitor<'_>,
    ) -> Result<Costs, ApiError> {
        let mut costs = load_costs_from(Path::new(&request.file))?;
        let objects = source.parse_objects()?;
        let functions = objects.chains.iter().flat_map(|chain| &chain.functions);
        let own = |function: &FunctionSpec| {
            let config = function.config.own_core()?;
            Some((
                config.command_text(),
                (function.name.clone(), config.clone()),
            ))
        };
        let boxes: BTreeMap<_, _> = functions.filter_map(own).collect();
        if boxes.is_empty() {
            return Err(ApiError::usage(format!(
                "{}: no function has `kind: external`, so there is no black box to measure; `myelin calibrate` without \
                 a file measures this machine",
                source.name
            )));
        }
        let running = self.node.chains.names();
        if !running.is_empty() {
            return Err(ApiError::failed(format!(
                "a black box is measured alone, but chains run ({}): remove them before (`myelin down NAME`)",
                Vec::from_iter(running).join(", ")
            )));
        }
        for (command, (name, config)) in boxes {
            let cost =
                calibrate::measure_black_box(self, (&name, &config), request.quick, monitor)?;
            costs.black_boxes.insert(command, cost);
        }
        Ok(costs)
    }
}
