//! Files of capacity cards.

use plimsoll::config::{cards, cards_text, read_cards};

/// The cards of a file, written as YAML and as JSON, must be read as the same cards.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok((read, _)) = read_cards("cards", text) else { return };
    for written in [cards_text(&read), cards(&read).to_string()] {
        let again = read_cards("cards", &written);
        let (again, warnings) = again.unwrap_or_else(|error| panic!("{error}\n{written}"));
        assert_eq!(again, read, "{written}");
        assert!(warnings.is_empty(), "{warnings:?}\n{written}");
    }
}
