//! Recorded arrival rates as numbers, so that worlds need no files.
//!
//! Each is a list of counts or relative rates at equal intervals. Only the rate relative to the
//! mean matters; the absolute rate follows from the size of the fleet.

/// A recorded rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    /// Seconds between two numbers.
    pub(crate) step: f64,
    pub(crate) rates: &'static [u16],
    /// Neighbors on each side with which a number is averaged. Counts per minute vary by chance,
    /// and drawing arrivals at a rate already adds that variation.
    pub(crate) smoothed: usize,
    /// True if it can be played faster than it was recorded. A day can be; an hour is no longer
    /// than a world.
    pub(crate) compressed: bool,
}

/// Requests per minute of `AzureLLMInferenceTrace_conv.csv`.
///
/// # Source
///
/// Azure/AzurePublicDataset, commit b469a11, CC-BY 4.0: Patel et al., Splitwise (ISCA 2024).
pub(crate) const AZURE_CONVERSATION: Recording = Recording {
    step: 60.0,
    rates: &[
        191, 265, 329, 353, 307, 273, 268, 261, 322, 298, 301, 302, 345, 326, 283, 279, 280, 308,
        343, 351, 351, 343, 408, 396, 386, 398, 432, 480, 476, 453, 448, 507, 438, 413, 423, 418,
        465, 311, 329, 316, 333, 355, 319, 360, 334, 375, 330, 249, 221, 249, 265, 280, 256, 254,
        242, 260, 246, 225,
    ],
    smoothed: 1,
    compressed: false,
};

/// Requests per minute of `AzureLLMInferenceTrace_code.csv`, including minutes without requests.
///
/// # Source
///
/// As [`AZURE_CONVERSATION`].
pub(crate) const AZURE_CODE: Recording = Recording {
    step: 60.0,
    rates: &[
        63, 0, 0, 531, 187, 130, 15, 42, 38, 476, 421, 63, 0, 0, 632, 299, 0, 20, 396, 315, 116,
        78, 306, 447, 252, 34, 128, 111, 406, 234, 118, 169, 130, 306, 158, 0, 339, 55, 285, 191,
        0, 28, 205, 245, 99, 0, 0, 32, 0, 0, 0, 97, 212, 22, 32, 113, 47,
    ],
    smoothed: 0,
    compressed: false,
};

/// Requests per minute of `conversation_trace.jsonl`, without the last minute, which is incomplete.
///
/// # Source
///
/// kvcache-ai/Mooncake, commit 3b5a594, Apache-2.0: Qin et al., Mooncake (FAST 2025).
pub(crate) const MOONCAKE: Recording = Recording {
    step: 60.0,
    rates: &[
        162, 177, 217, 175, 187, 164, 144, 183, 162, 179, 218, 186, 186, 204, 184, 162, 189, 169,
        190, 220, 203, 206, 218, 208, 172, 240, 179, 210, 216, 209, 235, 197, 194, 188, 225, 208,
        247, 176, 228, 234, 207, 234, 206, 224, 218, 215, 196, 230, 227, 235, 219, 247, 222, 216,
        200, 238, 218, 225,
    ],
    smoothed: 1,
    compressed: false,
};

/// All clients of `m-small` in windows of ten minutes of their first day, in percent of the mean.
///
/// # Source
///
/// alibaba/ServeGen, commit f891d11, Apache-2.0: Xiang et al., arXiv 2505.09999.
pub(crate) const SERVEGEN_SMALL: Recording = Recording {
    step: 600.0,
    rates: &[
        82, 80, 80, 80, 80, 80, 62, 61, 63, 65, 65, 63, 49, 50, 53, 63, 67, 69, 71, 53, 57, 58, 60,
        62, 63, 48, 52, 56, 60, 64, 63, 52, 61, 65, 68, 73, 75, 61, 66, 72, 76, 79, 83, 71, 74, 76,
        80, 84, 90, 81, 80, 85, 88, 93, 99, 112, 98, 123, 115, 101, 105, 107, 98, 102, 97, 94, 94,
        95, 93, 87, 89, 74, 80, 75, 83, 84, 85, 87, 85, 81, 71, 75, 80, 93, 96, 97, 99, 101, 106,
        104, 106, 107, 111, 109, 106, 104, 105, 107, 111, 111, 115, 113, 116, 124, 115, 110, 106,
        122, 109, 114, 119, 122, 122, 127, 129, 135, 147, 150, 152, 154, 157, 164, 169, 185, 185,
        191, 197, 174, 169, 160, 163, 164, 166, 167, 158, 151, 146, 143, 138, 132, 130, 115, 110,
        109,
    ],
    smoothed: 0,
    compressed: true,
};

/// All clients of `deepseek-r1` in windows of ten minutes of their day, in percent of the mean.
///
/// # Source
///
/// As [`SERVEGEN_SMALL`].
pub(crate) const SERVEGEN_REASONING: Recording = Recording {
    step: 600.0,
    rates: &[
        93, 115, 125, 129, 128, 133, 134, 137, 136, 137, 137, 152, 200, 208, 206, 202, 204, 201,
        197, 185, 179, 184, 186, 143, 105, 107, 106, 105, 107, 110, 108, 105, 74, 90, 81, 86, 86,
        90, 59, 71, 74, 69, 57, 66, 58, 60, 53, 54, 63, 63, 48, 68, 52, 62, 32, 72, 79, 67, 82, 65,
        86, 69, 79, 94, 66, 92, 102, 64, 93, 69, 84, 86, 65, 73, 37, 37, 27, 30, 30, 32, 58, 64,
        67, 76, 72, 68, 72, 68, 66, 65, 59, 57, 55, 72, 77, 102, 99, 104, 116, 100, 57, 51, 56, 50,
        62, 56, 48, 60, 67, 87, 74, 71, 73, 78, 64, 57, 52, 62, 56, 61, 107, 153, 125, 125, 127,
        107, 125, 125, 112, 203, 208, 200, 227, 266, 258, 222, 204, 139, 141, 101, 75, 84, 160,
        148,
    ],
    smoothed: 0,
    compressed: true,
};

// === impl Recording ===

impl Recording {
    /// The numbers, averaged with their neighbors.
    pub(crate) fn rates(&self) -> Vec<f64> {
        (0..self.rates.len()).map(|at| self.rate(at)).collect()
    }

    fn rate(&self, at: usize) -> f64 {
        let from = at.saturating_sub(self.smoothed);
        let to = (at + self.smoothed + 1).min(self.rates.len());
        let numbers = &self.rates[from..to];
        numbers.iter().map(|it| f64::from(*it)).sum::<f64>() / numbers.len() as f64
    }
}
