//! What a barrier and the hand-over of a job cost: `cargo bench -p numamirror-core --bench barrier`.
//!
//! Prints nanoseconds, mean ± standard deviation of five repeats. More threads than CPUs measure
//! how tolerable crowding is. Other load on the machine shows at once: run it alone.
#![expect(clippy::print_stdout, reason = "a benchmark's numbers are its output")]

use std::hint::black_box;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use numamirror_core::error::Result;
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, ThreadPlan, Topology};
use numamirror_core::workers::{Control, Team, WorkerIndex, Workers};

const N_REPEATS: usize = 5;

/// Barriers timed together: few enough that some batches run undisturbed on a busy machine.
const BATCH: u32 = 500;

fn main() -> Result<()> {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc"))?;
    let allowed: Vec<_> = sys::affinity()?.into_iter().map(CpuId).collect();
    let (n_cpus, n_nodes) = (allowed.len(), topology.nodes.len());
    println!("cpus: {n_cpus}, nodes: {n_nodes}; ns, mean ± sd of {N_REPEATS}");
    for n_threads in [1, 2, 4] {
        let plan = ThreadPlan::new(&topology, &allowed, Some(n_threads), None, None)?;
        let workers = Workers::new(&plan.pins)?;
        let crowded = if n_threads > n_cpus { " (crowded)" } else { "" };
        let n_batches = if n_threads > n_cpus { 20 } else { 400 };
        let mut best = f64::INFINITY;
        let barrier = repeat(|| {
            let batches = barriers(&workers, n_batches)?;
            best = batches.iter().copied().fold(best, f64::min);
            Ok(batches.iter().sum::<f64>() / n_batches as f64)
        })?;
        let warm = repeat(|| dispatches(&workers, 1000, Duration::ZERO))?;
        let cold = repeat(|| dispatches(&workers, 50, Duration::from_millis(1)))?;
        println!(
            "{n_threads} threads{crowded}: barrier {barrier} (best batch {best:.0}), run {warm}, run from idle {cold}"
        );
    }
    Ok(())
}

/// Nanoseconds a barrier, in batches of [`BATCH`].
fn barriers(workers: &Workers, n_batches: usize) -> Result<Vec<f64>> {
    let times = Mutex::new(vec![0.0; n_batches]);
    let job = |team: &Team<'_>| {
        for batch in 0..n_batches {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(team.barrier());
            }
            if team.worker() == WorkerIndex(0) {
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                times[batch] = start.elapsed().as_nanos() as f64 / f64::from(BATCH);
            }
        }
    };
    workers.run(workers.n_threads(), &job, &mut || Control::Continue)?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Nanoseconds from the call of `run` with an empty job to its return, `idle` apart.
fn dispatches(workers: &Workers, n_runs: u32, idle: Duration) -> Result<f64> {
    let mut total = Duration::ZERO;
    for _ in 0..n_runs {
        if !idle.is_zero() {
            std::thread::sleep(idle);
        }
        let start = Instant::now();
        workers.run(workers.n_threads(), &|_| (), &mut || Control::Continue)?;
        total += start.elapsed();
    }
    Ok(total.as_nanos() as f64 / f64::from(n_runs))
}

fn repeat(mut measure: impl FnMut() -> Result<f64>) -> Result<String> {
    let values: Vec<f64> = (0..N_REPEATS).map(|_| measure()).collect::<Result<_>>()?;
    let mean = values.iter().sum::<f64>() / N_REPEATS as f64;
    let square_sum: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Ok(format!(
        "{mean:.0} ± {:.0}",
        (square_sum / (N_REPEATS - 1) as f64).sqrt()
    ))
}
