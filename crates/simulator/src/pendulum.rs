//! An inverted pendulum on a cart, and its controller: what a control loop over a network balances.
//!
//! The pendulum is a point mass at the end of a rod of 1 m. The motor accelerates the cart.
//! The controller sees the angle alone, as a sensor sends it, and answers with an acceleration:
//! proportional to the angle and to its change since the sample before (PD).
//!
//! ```text
//! angle'' = (G sin(angle) - acceleration cos(angle)) / ROD_M
//! ```
//!
//! With these gains the loop stands if an answer takes effect at most [`DELAY_LIMIT_S`] after its
//! sample. The limit follows from the linear system: atan(K w / P) / w, with w the frequency at
//! which the open loop has the gain 1, P and K the gains.

use std::f64::consts::FRAC_PI_2;

/// Standard gravity, m/s^2.
const GRAVITY: f64 = 9.806_65;
/// Length of the rod, m.
const ROD_M: f64 = 1.0;
/// Largest acceleration of the motor, m/s^2.
const MOTOR_LIMIT: f64 = 60.0;
/// Gain of the angle, m/s^2 a radian, and of its change, m/s a radian.
const ANGLE_GAIN: f64 = 260.0;
const CHANGE_GAIN: f64 = 27.0;
/// Longest step of the integration, s.
const STEP_S: f64 = 1e-4;
/// Longest time that the integration covers at once, s: the plant is not observed longer.
const LONGEST_S: f64 = 60.0;

/// Longest delay from a sample to its effect at which the loop stands, s.
pub const DELAY_LIMIT_S: f64 = 0.044;

/// The plant: a pendulum, upright at the angle 0, that lies at a right angle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pendulum {
    /// Radians from upright.
    angle: f64,
    /// Radians a second.
    speed: f64,
    /// What the motor does, m/s^2.
    acceleration: f64,
}

impl Pendulum {
    /// A pendulum at rest at an angle, radians.
    pub fn released_at(angle: f64) -> Self {
        Self {
            angle: clamp(angle, FRAC_PI_2),
            speed: 0.0,
            acceleration: 0.0,
        }
    }

    /// Its angle from upright, radians.
    pub fn angle(&self) -> f64 {
        self.angle
    }

    /// Tells the motor to accelerate the cart from now on, m/s^2. The motor has a limit.
    pub fn accelerate(&mut self, acceleration: f64) {
        self.acceleration = clamp(acceleration, MOTOR_LIMIT);
    }

    /// Lets time pass, s.
    pub fn advance(&mut self, seconds: f64) {
        let seconds = clamp(seconds, LONGEST_S).max(0.0);
        let steps = (seconds / STEP_S).ceil().max(1.0);
        let step_s = seconds / steps;
        for _ in 0..steps as u64 {
            let (sin, cos) = self.angle.sin_cos();
            self.speed += (GRAVITY * sin - self.acceleration * cos) / ROD_M * step_s;
            self.angle += self.speed * step_s;
            if self.angle.abs() >= FRAC_PI_2 {
                self.angle = FRAC_PI_2.copysign(self.angle);
                self.speed = 0.0;
            }
        }
    }
}

/// The controller: its last sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Controller {
    /// When the sensor took it, s on the sensor's clock, and the angle, radians.
    last: Option<(f64, f64)>,
}

impl Controller {
    /// Returns the acceleration for a sample that the sensor took at `time_s`, by its clock. A
    /// sample that is older than one before it has no answer.
    pub fn answer(&mut self, time_s: f64, angle: f64) -> Option<f64> {
        let change = match self.last {
            None => 0.0,
            Some((before_s, before)) if time_s > before_s => (angle - before) / (time_s - before_s),
            Some(_) => return None,
        };
        self.last = Some((time_s, angle));
        Some(ANGLE_GAIN * angle + CHANGE_GAIN * change)
    }
}

/// Limits a number to `-limit..=limit`; no number becomes 0.
fn clamp(value: f64, limit: f64) -> f64 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(-limit, limit)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const START: f64 = 0.1;

    /// Closes the loop for five seconds, with a delay and a time between samples, s. Returns the
    /// largest angle of each quarter of a second.
    fn close(delay_s: f64, interval_s: f64) -> Vec<f64> {
        const TICK_S: f64 = 5e-4;
        let mut plant = Pendulum::released_at(START);
        let mut controller = Controller::default();
        let mut answers = VecDeque::new();
        let (mut swings, mut next_s) = (vec![0.0_f64; 20], 0.0);
        for tick in 0..10_000 {
            let now_s = f64::from(tick) * TICK_S;
            if now_s >= next_s - TICK_S / 2.0 {
                next_s += interval_s;
                let answer = controller.answer(now_s, plant.angle()).unwrap();
                answers.push_back((now_s + delay_s, answer));
            }
            while let Some((due_s, answer)) = answers.front().copied()
                && due_s <= now_s + TICK_S / 2.0
            {
                plant.accelerate(answer);
                answers.pop_front();
            }
            plant.advance(TICK_S);
            let swing = &mut swings[tick as usize / 500];
            *swing = swing.max(plant.angle().abs());
        }
        swings
    }

    #[test]
    fn it_falls_alone() {
        let mut plant = Pendulum::released_at(START);
        plant.advance(0.5);
        // START cosh(sqrt(GRAVITY / ROD_M) 0.5 s), a little less because the sine is.
        assert!((plant.angle() / START - 2.49).abs() < 0.02, "{plant:?}");
        plant.advance(5.0);
        assert!((plant.angle() - FRAC_PI_2).abs() < 1e-9, "{plant:?}");
    }

    #[test]
    fn the_delay_decides_whether_it_stands() {
        let last = |delay_s, interval_s| close(delay_s, interval_s)[19] / START;
        assert!(last(0.001, 0.001) < 1e-6);
        assert!(last(0.001, 0.005) < 1e-6);
        assert!(last(0.001, 0.010) < 1e-6);
        assert!(last(0.040, 0.001) < 0.01);
        assert!(last(0.050, 0.001) > 0.5);
        // The change comes from two samples: it is half an interval old.
        assert!(last(DELAY_LIMIT_S - 0.0015, 0.001) < 0.5);
        assert!(last(DELAY_LIMIT_S + 0.0005, 0.001) > 0.5);
    }

    #[test]
    fn forty_milliseconds_settle_in_three_seconds() {
        let swings = close(0.040, 0.001);
        let place = swings.iter().rposition(|swing| *swing > 0.02 * START);
        let seconds = place.map_or(0.0, |place| (place + 1) as f64 / 4.0);
        assert!((1.5..=3.5).contains(&seconds), "{seconds} s: {swings:?}");
    }

    #[test]
    fn old_samples_have_no_answer() {
        let mut controller = Controller::default();
        assert_eq!(controller.answer(1.0, 0.1), Some(26.0));
        assert_eq!(controller.answer(1.0, 0.2), None);
        assert_eq!(controller.answer(0.5, 0.2), None);
        let answer = controller.answer(2.0, 0.2).unwrap();
        assert!((answer - (52.0 + 2.7)).abs() < 1e-9, "{answer}");
    }

    #[test]
    fn no_number_harms_it() {
        for odd in [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e300] {
            let mut plant = Pendulum::released_at(odd);
            plant.accelerate(odd);
            plant.advance(0.01);
            assert!(plant.angle().is_finite());
            plant.advance(odd.min(1.0));
            assert!(plant.angle().abs() <= FRAC_PI_2);
        }
    }
}
