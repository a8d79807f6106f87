//! The macro that declares sections of the configuration.

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
