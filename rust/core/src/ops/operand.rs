//! What an op may take: typed operands, their schema, and how the verifier walks them.
//!
//! An operand type says by its name how the op uses the thing ([`Read`], [`Write`], [`Matrix`], …).
//! The fields are private: a value exists only where a program was parsed, and a running op only
//! where the program was verified, so holding a [`Read`] is the permission to read that slot.
//! Knows no op and checks no shape; `program.rs` does, through [`Operands::visit`].

use serde::{Deserialize, de::DeserializeOwned};

use crate::arena::SlotId;
use crate::state::CacheId;
use crate::weights::TensorId;

/// How an operand uses what it names; the verifier checks ids and order of use with it.
#[derive(Debug, Clone, PartialEq)]
pub enum Use {
    /// The slot's rows are read and must have been written before.
    Read(SlotId),
    /// The slot's rows are written whole.
    Write(SlotId),
    /// The slot's rows are changed in place and must have been written before.
    Update(SlotId),
    /// A tensor of one row, held as plain f32.
    Vector(TensorId),
    /// A packed matrix.
    Matrix(TensorId),
    /// The block cache of one attention layer.
    Cache(CacheId),
    /// A number outside its range, in words.
    Bad(String),
    /// A number that is all right.
    Number,
}

/// One field of an op as Python sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in the program's JSON.
    pub name: &'static str,
    /// Kind of operand: `read`, `write`, `update`, `vector`, `matrix`, `cache`, `count`, …
    pub kind: &'static str,
    /// The field may be left out.
    pub optional: bool,
    /// Fields of one element, for kind `list`.
    pub fields: Vec<Field>,
}

/// Receives every operand of an op: the field's name and its use.
pub type Visitor<'v> = dyn FnMut(&'static str, Use) + 'v;

/// A struct of operands: an op, or an element of an op's list. Written by [`operands!`].
pub trait Operands: DeserializeOwned {
    /// The fields in order of declaration.
    fn schema() -> Vec<Field>;
    /// Shows every operand to `visitor`.
    fn visit(&self, visitor: &mut Visitor<'_>);
}

/// One operand.
pub trait Operand {
    /// The field that `name` makes of this type.
    fn field(name: &'static str) -> Field;
    /// Shows the operand to `visitor` under `name`.
    fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>);
}

/// Declares a struct of operands: its JSON form, schema and visit in one place.
macro_rules! operands {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $( $(#[$field_meta:meta])* $field:ident : $kind:ty ),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $vis struct $name { $( $(#[$field_meta])* pub(crate) $field: $kind ),* }

        impl $crate::ops::operand::Operands for $name {
            fn schema() -> Vec<$crate::ops::operand::Field> {
                vec![$(<$kind as $crate::ops::operand::Operand>::field(stringify!($field))),*]
            }
            fn visit(&self, visitor: &mut $crate::ops::operand::Visitor<'_>) {
                $( $crate::ops::operand::Operand::visit(&self.$field, stringify!($field), visitor); )*
            }
        }
    };
}
pub(crate) use operands;

/// An operand that is an id and nothing else: declared with the use it stands for.
macro_rules! id_operand {
    ($(#[$meta:meta])* $name:ident($id:ty), $kind:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
        #[serde(transparent)]
        pub struct $name($id);

        impl $name {
            /// The id that the operand names.
            #[must_use]
            pub fn id(self) -> $id {
                self.0
            }
        }

        impl Operand for $name {
            fn field(name: &'static str) -> Field {
                plain(name, $kind)
            }
            fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
                visitor(name, Use::$name(self.0));
            }
        }
    };
}

id_operand!(
    /// A slot that the op reads.
    Read(SlotId), "read");
id_operand!(
    /// A slot that the op writes, every row it has.
    Write(SlotId), "write");
id_operand!(
    /// A slot that the op changes in place.
    Update(SlotId), "update");
id_operand!(
    /// A tensor of one row, f32.
    Vector(TensorId), "vector");
id_operand!(
    /// A packed matrix.
    Matrix(TensorId), "matrix");
id_operand!(
    /// The block cache of one attention layer.
    Cache(CacheId), "cache");

/// An operand that is a number within a range: declared with its test and the words for it.
macro_rules! number_operand {
    ($(#[$meta:meta])* $name:ident($type:ty), $kind:literal, $valid:expr, $words:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
        #[serde(transparent)]
        pub struct $name($type);

        impl $name {
            /// The number.
            #[must_use]
            pub fn get(self) -> $type {
                self.0
            }
        }

        impl Operand for $name {
            fn field(name: &'static str) -> Field {
                plain(name, $kind)
            }
            fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
                let valid: fn($type) -> bool = $valid;
                visitor(name, if valid(self.0) {
                    Use::Number
                } else {
                    Use::Bad(format!("{} is not {}", self.0, $words))
                });
            }
        }
    };
}

number_operand!(
    /// A number of things, at least one.
    Count(u32), "count", |n| (1..=1 << 20).contains(&n), "a count from 1 to 1048576");
number_operand!(
    /// A finite number above zero.
    Positive(f32), "positive", |x| x.is_finite() && x > 0.0, "a finite number above zero");
number_operand!(
    /// An angle a position, finite and not negative.
    Frequency(f64), "frequency", |x| x.is_finite() && x >= 0.0, "a finite number not below zero");

impl<T: Operand> Operand for Option<T> {
    fn field(name: &'static str) -> Field {
        Field {
            optional: true,
            ..T::field(name)
        }
    }
    fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
        if let Some(operand) = self {
            operand.visit(name, visitor);
        }
    }
}

/// A list of plain operands.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct List<T>(Vec<T>);

impl<T> std::ops::Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Operand> Operand for List<T> {
    fn field(name: &'static str) -> Field {
        Field {
            name,
            kind: "list",
            optional: false,
            fields: vec![T::field("")],
        }
    }
    fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
        self.0
            .iter()
            .for_each(|operand| operand.visit(name, visitor));
        if self.0.is_empty() {
            visitor(name, Use::Bad("an empty list".into()));
        }
    }
}

/// A list of structs of operands.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Records<T>(Vec<T>);

impl<T> std::ops::Deref for Records<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Operands> Operand for Records<T> {
    fn field(name: &'static str) -> Field {
        Field {
            name,
            kind: "records",
            optional: false,
            fields: T::schema(),
        }
    }
    fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
        self.0.iter().for_each(|record| record.visit(visitor));
        if self.0.is_empty() {
            visitor(name, Use::Bad("an empty list".into()));
        }
    }
}

pub(super) fn plain(name: &'static str, kind: &'static str) -> Field {
    Field {
        name,
        kind,
        optional: false,
        fields: Vec::new(),
    }
}
