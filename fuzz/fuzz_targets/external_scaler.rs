#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::external_scaler::check(input));
