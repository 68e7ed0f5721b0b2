//! Running a program: the worker threads and what they meet at.

mod barrier;
mod event;
mod pool;
mod seats;
mod team;
pub mod workers;
