//! Instruction sets: which the CPU has, which one a run uses, and its kernels.
//!
//! Holds the list of sets, best last, and the kernel table: packed form × instruction set. A cell
//! that no file fills falls back to the form's scalar kernel. The CPU is asked once. Knows no
//! layout and no arithmetic. An `&'static Isa` can only be had from [`choose`] and [`available`],
//! so holding one proves that the CPU has the set. To add a set, write `isa/<isa>/` and add its
//! record to `ISAS`.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub mod lanes;
pub mod vector;

use crate::error::{Error, Result};
use crate::packed::{MatmulFn, PackedForm};
use std::sync::OnceLock;

use vector::VectorOps;

/// Names the instruction set to use, whatever else the CPU has.
pub const FORCE_VARIABLE: &str = "NUMAMIRROR_ISA";

/// Names an instruction set without which nothing may run: for tests that must not skip it.
pub const REQUIRE_VARIABLE: &str = "NUMAMIRROR_REQUIRE_ISA";

/// Every instruction set of this architecture, the better ones later.
static ISAS: &[&Isa] = &[
    &SCALAR,
    #[cfg(target_arch = "x86_64")]
    &avx2::ISA,
];

/// Plain Rust: the reference, and what any CPU runs.
static SCALAR: Isa = Isa {
    name: "scalar",
    panel_rows: 8,
    detect: || true,
    kernels: &[],
    vector: &vector::SCALAR,
};

/// One instruction set that this CPU has.
#[derive(Debug)]
pub struct Isa {
    /// Its name, as `NUMAMIRROR_ISA` takes it.
    pub name: &'static str,
    /// Rows that its panels interleave.
    pub panel_rows: usize,
    /// Asks the CPU.
    detect: fn() -> bool,
    /// The forms that it speeds up.
    kernels: &'static [Kernel],
    /// Its element-wise functions.
    pub vector: &'static VectorOps,
}

/// One cell of the kernel table.
#[derive(Debug)]
struct Kernel {
    form: &'static PackedForm,
    matmul: MatmulFn,
}

impl Isa {
    /// The kernel for a form: this set's own, or the form's scalar one.
    #[must_use]
    pub fn matmul(&self, form: &PackedForm) -> MatmulFn {
        let own = self
            .kernels
            .iter()
            .find(|kernel| kernel.form.name == form.name);
        own.map_or(form.matmul, |kernel| kernel.matmul)
    }

    /// Whether the set has a kernel of its own for a form.
    #[must_use]
    pub fn speeds_up(&self, form: &PackedForm) -> bool {
        self.kernels
            .iter()
            .any(|kernel| kernel.form.name == form.name)
    }
}

/// Every instruction set by name, with whether this CPU has it.
pub fn known() -> impl Iterator<Item = (&'static str, bool)> {
    ISAS.iter()
        .map(|isa| (isa.name, available().iter().any(|a| a.name == isa.name)))
}

/// The instruction sets that this CPU has, the better ones later; never empty.
pub fn available() -> &'static [&'static Isa] {
    static AVAILABLE: OnceLock<Vec<&'static Isa>> = OnceLock::new();
    AVAILABLE.get_or_init(|| ISAS.iter().copied().filter(|isa| (isa.detect)()).collect())
}

/// The instruction set to use.
///
/// # Args
/// `force`: a name that overrides `NUMAMIRROR_ISA`.
///
/// # Returns
/// The set forced by the argument or the variable, else the best that the CPU has.
///
/// # Errors
/// [`Error::Unsupported`] for a name that there is not; [`Error::IsaMissing`] when the CPU lacks
/// the set that is forced, or that `NUMAMIRROR_REQUIRE_ISA` names.
pub fn choose(force: Option<&str>) -> Result<&'static Isa> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(name) = variable(REQUIRE_VARIABLE) {
        find(&name, REQUIRE_VARIABLE)?;
    }
    match (force, variable(FORCE_VARIABLE)) {
        (Some(name), _) => find(name, "asked for by name"),
        (None, Some(name)) => find(&name, FORCE_VARIABLE),
        (None, None) => Ok(best()),
    }
}

/// The best set that the CPU has.
fn best() -> &'static Isa {
    available().last().copied().unwrap_or(&SCALAR)
}

/// The set of this name, if the CPU has it.
fn find(name: &str, asked_by: &'static str) -> Result<&'static Isa> {
    if let Some(isa) = available().iter().find(|isa| isa.name == name) {
        return Ok(isa);
    }
    let name = name.to_owned();
    if ISAS.iter().any(|isa| isa.name == name) {
        return Err(Error::IsaMissing { name, asked_by });
    }
    let known = ISAS
        .iter()
        .map(|isa| isa.name)
        .collect::<Vec<_>>()
        .join(", ");
    Err(Error::Unsupported {
        kind: "instruction set",
        name,
        known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed;

    #[test]
    fn scalar_is_everywhere_and_has_no_kernels_of_its_own() {
        let scalar = find("scalar", "test").expect("every CPU runs plain Rust");
        for form in packed::FORMS {
            assert!(std::ptr::fn_addr_eq(scalar.matmul(form), form.matmul));
            assert!(!scalar.speeds_up(form));
        }
    }

    #[test]
    fn panels_of_every_set_fit_the_forms() {
        for isa in ISAS {
            assert!(isa.panel_rows <= packed::MAX_PANEL_ROWS, "{}", isa.name);
        }
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let message = find("avx3", "test").expect_err("no such set").to_string();
        assert!(
            message.contains("avx3") && message.contains("scalar"),
            "{message}"
        );
    }

    #[test]
    fn a_forced_name_wins() {
        assert_eq!(
            choose(Some("scalar"))
                .expect("every CPU runs plain Rust")
                .name,
            "scalar"
        );
    }

    #[test]
    fn known_and_available_agree() {
        let found = known().filter(|(_, has)| *has).map(|(name, _)| name);
        assert!(found.eq(available().iter().map(|isa| isa.name)));
    }
}
