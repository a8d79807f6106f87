//! Settings: each key of the configuration is declared once, in the stage that reads it.
//!
//! A declaration has the name, type, default, range and description of each key of a section. From
//! it, [`settings!`](crate::settings!) generates:
//!
//! - the resolved type with its defaults,
//! - the type of the section as written, in which every key is optional,
//! - the checks that convert the second into the first, and the reverse conversion for printing,
//! - the JSON Schema, the source of the documents and of the list of keys that need a restart.
//!
//! ```text
//! settings! {
//!     /// Growth seen before is expected again.
//!     pub optional Growth {
//!         /// Share of past growths that the expected one is not below.
//!         quantile: Fraction = 0.9, in 0.0..=1.0;
//!     }
//! }
//! ```
//!
//! - A `struct` is a section that always applies.
//! - An `optional` section can be switched off with the key `enabled`. It is an `Option` in the
//!   parent section.
//! - A section without a default of its own in the parent section has the defaults of its keys.
//! - A field whose name differs from its key has the key's name after `as`.
//! - Fields after `..` are not keys: another stage sets them.
//! - A key can be `required`, followed by the rule to report when it is missing, if that differs
//!   from `is required`. Its default then stands in its place. A missing required section reports
//!   its own required keys, as if it were written and empty.
//! - `needs restart` after a key means that the running daemon keeps the value that it started
//!   with.

pub mod problem;
mod schema;
pub mod values;
pub mod written;

use std::fmt::Debug;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::settings::problem::Problems;

pub use crate::settings::schema::{MAXIMUM, MINIMUM, RESTART, SectionKeys};
pub use crate::settings::values::{
    Allowed, TextRule, above_zero, hours, millis, minutes, secs, text,
};

/// A value that a key of the configuration sets.
pub trait Setting: Clone + Sized {
    /// The form in a file.
    type Written: Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema;
    /// The form in a declaration, such as a bare number.
    type Plain;
    /// The values that a declaration can allow.
    type Allowed;

    /// The declared default.
    fn declared(plain: Self::Plain) -> Self;

    /// Reads a written value. `None` if it is rejected, or switches the section off.
    fn read(
        written: &Self::Written,
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self>;

    /// The form in a file that reads back as this value; `None` if it is left out.
    fn written(&self) -> Option<Self::Written>;

    /// The form in a file that switches an optional section off.
    #[must_use]
    fn off() -> Option<Self::Written> {
        None
    }

    /// Reads a written value, or takes the usual value.
    fn resolve(
        written: Option<&Self::Written>,
        usual: &Self,
        allowed: Option<&Self::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Self {
        let read = written.and_then(|it| Self::read(it, Some(usual), allowed, path, problems));
        read.unwrap_or_else(|| usual.clone())
    }

    /// Adds the problems of a missing required key.
    fn ask_for(path: &str, rule: &str, problems: &mut Problems) {
        problems.missing(path, rule);
    }

    /// The JSON Schema of the key, with its default and range.
    fn schema(
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema;

    /// The JSON Schema for a value that may be absent.
    fn optional_schema(
        usual: Option<&Self>,
        allowed: Option<&Self::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        Self::schema(usual, allowed, generator)
    }
}

/// The form of a section in a file: every key is optional.
pub type Written<S> = <S as Setting>::Written;

impl<T: Setting> Setting for Option<T> {
    type Written = T::Written;
    type Plain = Self;
    type Allowed = T::Allowed;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &T::Written,
        usual: Option<&Self>,
        allowed: Option<&T::Allowed>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        Some(T::read(written, usual.and_then(Option::as_ref), allowed, path, problems))
    }

    fn written(&self) -> Option<T::Written> {
        self.as_ref().map_or_else(T::off, T::written)
    }

    fn schema(
        usual: Option<&Self>,
        allowed: Option<&T::Allowed>,
        generator: &mut SchemaGenerator,
    ) -> Schema {
        T::optional_schema(usual.and_then(Option::as_ref), allowed, generator)
    }
}

/// An optional section that is on by default.
#[must_use]
pub fn on<T: Default>() -> Option<T> {
    Some(T::default())
}

/// Reads the section at a path. Missing keys keep their usual values.
pub fn resolve_over<S: Setting>(
    written: Option<&S::Written>,
    usual: &S,
    path: &str,
    problems: &mut Problems,
) -> S {
    S::resolve(written, usual, None, path, problems)
}

/// Reads the section at a path.
pub fn resolve<S: Setting + Default>(
    written: Option<&S::Written>,
    path: &str,
    problems: &mut Problems,
) -> S {
    resolve_over(written, &S::default(), path, problems)
}

/// Declares sections of the configuration; see the [module](mod@crate::settings).
///
/// `settings! { plain: Select; }` declares a type that has the same form in a file.
/// `settings! { switch: Steps, Steps::Unlimited, Steps::Limited }` declares one that is written as
/// `true` and `false`. `settings! { value: ... }` declares one that is written as a number.
#[macro_export]
macro_rules! settings {
    (plain: $($(@$param:ident)? $type:ty;)*) => {
        $($crate::settings!(@as [$($param)?] $type, Self, Self::clone, Self::clone);)*
    };

    (switch: $type:ty, $on:path, $off:path) => {
        $crate::settings!(
            @as [] $type, bool, |written| if *written { $on } else { $off }, |value| match value {
                $on => true,
                $off => false,
            }
        );
    };

    (@as [$($param:ident)?] $type:ty, $written:ty, $from:expr, $to:expr) => {
        impl$(<$param: $crate::settings::values::Plain>)? $crate::settings::Setting for $type {
            type Written = $written;
            type Plain = Self;
            type Allowed = std::convert::Infallible;

            fn declared(plain: Self) -> Self {
                plain
            }

            fn read(
                written: &$written,
                _: Option<&Self>,
                _: Option<&Self::Allowed>,
                _: &str,
                _: &mut $crate::settings::problem::Problems,
            ) -> Option<Self> {
                let read: fn(&$written) -> Self = $from;
                Some(read(written))
            }

            fn written(&self) -> Option<$written> {
                let write: fn(&Self) -> $written = $to;
                Some(write(self))
            }

            fn schema(
                usual: Option<&Self>,
                _: Option<&Self::Allowed>,
                generator: &mut schemars::SchemaGenerator,
            ) -> schemars::Schema {
                let default = usual.and_then($crate::settings::Setting::written);
                $crate::settings::SectionKeys::plain(default.as_ref(), generator)
            }
        }
    };

    (value: $($type:ty: $plain:ty as $written:ty, $from:expr, $to:expr;)*) => {$(
        impl $crate::settings::Setting for $type {
            type Written = $written;
            type Plain = $plain;
            type Allowed = $crate::settings::Allowed<$plain>;

            fn declared(plain: $plain) -> Self {
                let read: fn($plain) -> Option<Self> = $from;
                read(plain).expect("a declared default is a value")
            }

            fn read(
                written: &$written,
                _: Option<&Self>,
                allowed: Option<&Self::Allowed>,
                path: &str,
                problems: &mut $crate::settings::problem::Problems,
            ) -> Option<Self> {
                let plain = <$plain>::from(*written);
                let checked = match allowed {
                    Some(allowed) => allowed.check::<$written>(plain, path, problems)?,
                    None => plain,
                };
                let read: fn($plain) -> Option<Self> = $from;
                read(checked)
            }

            fn written(&self) -> Option<$written> {
                let write: fn(Self) -> $plain = $to;
                Some(<$written>::from(write(*self)))
            }

            fn schema(
                usual: Option<&Self>,
                allowed: Option<&Self::Allowed>,
                generator: &mut schemars::SchemaGenerator,
            ) -> schemars::Schema {
                $crate::settings::SectionKeys::value(
                    usual.and_then($crate::settings::Setting::written),
                    allowed,
                    generator,
                )
            }
        }
    )*};

    (
        $(
            $(#[doc = $doc:expr])*
            $(#[derive($($derive:ident),*)])?
            $vis:vis $kind:ident $name:ident { $($body:tt)* }
        )*
    ) => {
        $($crate::settings!(
            @$kind [$($doc)*] [$($($derive)*)?] $vis $name { $($body)* }
        );)*
    };

    (@struct $($rest:tt)*) => { $crate::settings!(@define [] $($rest)*); };
    (@optional $($rest:tt)*) => { $crate::settings!(@define [enabled] $($rest)*); };

    (
        @define [$($enabled:ident)?] [$($doc:expr)*] [$($derive:ident)*] $vis:vis $name:ident {
            $(
                $(#[doc = $key_doc:expr])*
                $(#[serde($($serde:tt)*)])?
                $key:ident $(as $name_in_file:literal)?: $type:ty
                    $(= $default:expr)? $(, in $allowed:expr)? $(, required $($rule:literal)?)?
                    $(, needs $restart:ident)?;
            )*
            $(
                ..
                $(
                    $(#[doc = $other_doc:expr])*
                    $other:ident: $other_type:ty = $other_default:expr;
                )*
            )?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, $($derive,)* Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $key_doc])* pub $key: $type,)*
            $($($(#[doc = $other_doc])* pub $other: $other_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($key: $crate::settings!(@default $type $(, $default)?),)*
                    $($($other: $other_default,)*)?
                }
            }
        }

        const _: () = {
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            $vis struct WrittenKeys {
                $(pub $enabled: Option<bool>,)?
                $(
                    $(#[serde($($serde)*)])?
                    $(#[serde(rename = $name_in_file)])?
                    pub $key: Option<$crate::settings::Written<$type>>,
                )*
            }

            impl schemars::JsonSchema for WrittenKeys {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> std::borrow::Cow<'static, str> {
                    stringify!($name).into()
                }

                fn schema_id() -> std::borrow::Cow<'static, str> {
                    concat!(module_path!(), "::", stringify!($name)).into()
                }

                fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    let usual = $name::default();
                    <$name as $crate::settings::Setting>::schema(Some(&usual), None, generator)
                }
            }

            impl $crate::settings::Setting for $name {
                type Written = WrittenKeys;
                type Plain = Self;
                type Allowed = std::convert::Infallible;

                fn declared(plain: Self) -> Self {
                    plain
                }

                fn read(
                    written: &WrittenKeys,
                    usual: Option<&Self>,
                    _: Option<&Self::Allowed>,
                    path: &str,
                    problems: &mut $crate::settings::problem::Problems,
                ) -> Option<Self> {
                    $(
                        if written.$enabled == Some(false) {
                            let off = WrittenKeys { $enabled: Some(false), ..WrittenKeys::default() };
                            if *written != off {
                                problems.without_effect(path);
                            }
                            return None;
                        }
                    )?
                    $($crate::settings!(
                        @required $type,
                        written.$key,
                        $crate::settings::problem::join(
                            path,
                            $crate::settings!(@name $key $(, $name_in_file)?),
                        ),
                        problems
                        $(, $crate::settings!(@rule $($rule)?))?
                    );)*

                    let defaults = usual.cloned().unwrap_or_default();
                    Some(Self {
                        $($key: <$type as $crate::settings::Setting>::resolve(
                            written.$key.as_ref(),
                            &defaults.$key,
                            $crate::settings!(@allowed $type $(, $allowed)?).as_ref(),
                            &$crate::settings::problem::join(
                                path,
                                $crate::settings!(@name $key $(, $name_in_file)?),
                            ),
                            problems,
                        ),)*
                        $($($other: defaults.$other,)*)?
                    })
                }

                fn ask_for(
                    path: &str,
                    _: &str,
                    problems: &mut $crate::settings::problem::Problems,
                ) {
                    let empty = WrittenKeys::default();
                    let _ = <Self as $crate::settings::Setting>::read(&empty, None, None, path, problems);
                }

                fn written(&self) -> Option<WrittenKeys> {
                    Some(WrittenKeys {
                        $($enabled: Some(true),)?
                        $($key: $crate::settings::Setting::written(&self.$key),)*
                    })
                }

                $(
                    fn off() -> Option<WrittenKeys> {
                        Some(WrittenKeys { $enabled: Some(false), ..WrittenKeys::default() })
                    }
                )?

                fn schema(
                    usual: Option<&Self>,
                    _: Option<&Self::Allowed>,
                    generator: &mut schemars::SchemaGenerator,
                ) -> schemars::Schema {
                    let mut keys = $crate::settings::SectionKeys::of(&[$($doc),*]);
                    $(keys.add_switch(stringify!($enabled));)?
                    $({
                        let schema = <$type as $crate::settings::Setting>::schema(
                            usual.map(|it| &it.$key),
                            $crate::settings!(@allowed $type $(, $allowed)?).as_ref(),
                            generator,
                        );
                        let flags: &[&str] = &[
                            $(stringify!($restart),)?
                            $($crate::settings!(@required_flag $($rule)?),)?
                        ];
                        let name = $crate::settings!(@name $key $(, $name_in_file)?);
                        keys.add(name, &[$($key_doc),*], flags, schema);
                    })*
                    keys.schema()
                }

                fn optional_schema(
                    usual: Option<&Self>,
                    allowed: Option<&Self::Allowed>,
                    generator: &mut schemars::SchemaGenerator,
                ) -> schemars::Schema {
                    let keys = usual.cloned().unwrap_or_default();
                    let schema = Self::schema(Some(&keys), allowed, generator);
                    let switches: &[&str] = &[$(stringify!($enabled))?];
                    $crate::settings::SectionKeys::switched(schema, switches, usual.is_some())
                }
            }
        };
    };

    (@name $key:ident) => { stringify!($key) };
    (@name $key:ident, $name_in_file:literal) => { $name_in_file };

    (@required $type:ty, $written:expr, $path:expr, $problems:ident) => {};
    (@required $type:ty, $written:expr, $path:expr, $problems:ident, $rule:expr) => {
        if $written.is_none() {
            <$type as $crate::settings::Setting>::ask_for(&$path, $rule, $problems);
        }
    };

    (@required_flag $($rule:literal)?) => { "required" };

    (@rule) => { "is required" };
    (@rule $rule:literal) => { $rule };

    (@default $type:ty) => { <$type as Default>::default() };
    (@default $type:ty, $default:expr) => {
        <$type as $crate::settings::Setting>::declared($default)
    };

    (@allowed $type:ty) => { None::<<$type as $crate::settings::Setting>::Allowed> };
    (@allowed $type:ty, $allowed:expr) => {
        Some(<$type as $crate::settings::Setting>::Allowed::from($allowed))
    };
}
