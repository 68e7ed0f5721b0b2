//! The best next tokens: penalties on logits, then the top k, without handing 50,000 floats to
//! Python.
//!
//! Knows neither temperature nor randomness: `numamirror.sampling` picks from what this gives.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::error::{Error, Result};

/// Penalties on tokens that were seen lately, with llama.cpp's meaning.
#[derive(Debug, Clone, Copy)]
pub struct Penalties {
    /// Divides positive logits of seen tokens and multiplies negative ones; 1 is none.
    pub repeat: f32,
    /// Taken off the logit for each time the token was seen; 0 is none.
    pub frequency: f32,
    /// Taken off the logit once if the token was seen; 0 is none.
    pub presence: f32,
}

impl Penalties {
    #[expect(
        clippy::float_cmp,
        reason = "only the neutral values themselves change nothing"
    )]
    fn none(&self) -> bool {
        self.repeat == 1.0 && self.frequency == 0.0 && self.presence == 0.0
    }

    /// Applies them in place.
    ///
    /// Source: `llama_sampler_penalties_apply` of llama.cpp.
    fn apply(&self, recent: &[u32], logits: &mut [f32]) {
        let mut counts: HashMap<u32, u32> = HashMap::with_capacity(recent.len());
        for &id in recent {
            *counts.entry(id).or_default() += 1;
        }
        for (id, count) in counts {
            let logit = &mut logits[id as usize];
            *logit = if *logit <= 0.0 {
                *logit * self.repeat
            } else {
                *logit / self.repeat
            };
            *logit -= count as f32 * self.frequency + self.presence;
        }
    }
}

/// The `k` tokens with the highest logits after `penalties`, highest first, lower ids first among
/// equals. `k` above the vocabulary means all.
///
/// # Errors
/// [`Error::BadRequest`] for a recent id outside the vocabulary or `k` = 0.
pub fn best(
    logits: &[f32],
    k: usize,
    recent: &[u32],
    penalties: &Penalties,
) -> Result<Vec<(u32, f32)>> {
    if k == 0 {
        return Err(bad("number of candidates", &0, "at least 1".into()));
    }
    if let Some(id) = recent.iter().find(|&&id| id as usize >= logits.len()) {
        return Err(bad(
            "recent token",
            id,
            format!("an id below {}", logits.len()),
        ));
    }
    if recent.is_empty() || penalties.none() {
        return Ok(top(logits, k));
    }
    let mut penalized = logits.to_vec();
    penalties.apply(recent, &mut penalized);
    Ok(top(&penalized, k))
}

fn bad(name: &str, found: &impl ToString, expected: String) -> Error {
    Error::BadRequest {
        name: name.into(),
        found: found.to_string(),
        expected,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what sort_by calls")]
fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// One pass that keeps up to 2k entries above a rising threshold: most logits cost one compare.
fn top(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let k = k.min(logits.len());
    let mut kept: Vec<(u32, f32)> = Vec::with_capacity(2 * k);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > threshold || kept.len() < k {
            kept.push((id as u32, logit));
            if kept.len() == 2 * k {
                kept.select_nth_unstable_by(k - 1, order);
                kept.truncate(k);
                threshold = kept[k - 1].1;
            }
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(k);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Penalties = Penalties {
        repeat: 1.0,
        frequency: 0.0,
        presence: 0.0,
    };

    /// Logits with many ties, from a small generator.
    fn logits(n: usize) -> Vec<f32> {
        let mut x = 12345_u32;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 20) as f32 / 16.0 - 100.0
            })
            .collect()
    }

    #[test]
    fn top_k_equals_a_full_sort_for_every_k() {
        let logits = logits(500);
        let mut all: Vec<_> = (0..).zip(logits.iter().copied()).collect();
        all.sort_by(order);
        for k in [1, 2, 3, 40, 250, 499, 500, 501, 10_000] {
            let found = best(&logits, k, &[], &NONE).expect("valid");
            assert_eq!(found, all[..k.min(500)], "k = {k}");
        }
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let found = best(&[1.0, 3.0, 3.0, 3.0, 2.0], 2, &[], &NONE).expect("valid");
        assert_eq!(found, [(1, 3.0), (2, 3.0)]);
    }

    #[test]
    fn penalties_are_llama_cpps() {
        let penalties = Penalties {
            repeat: 2.0,
            frequency: 0.5,
            presence: 0.25,
        };
        let found = best(&[4.0, -4.0, 1.0], 3, &[0, 0, 1], &penalties).expect("valid");
        assert_eq!(
            found,
            [
                (2, 1.0),
                (0, 4.0 / 2.0 - 1.0 - 0.25),
                (1, -8.0 - 0.5 - 0.25)
            ]
        );
    }

    #[test]
    fn impossible_requests_are_refused() {
        assert!(best(&[1.0], 0, &[], &NONE).is_err());
        assert!(best(&[1.0], 1, &[1], &NONE).is_err());
    }
}
