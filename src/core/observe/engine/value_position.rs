//! The position of a value in its rank or its response.

/// The position of a value in its rank or its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePosition {
    /// The value is ignored without a check.
    PassedOver,
    /// The value is ignored, but must be a valid cumulative number.
    Checked,
    /// The start of the process.
    Started,
    /// A class of HTTP answers.
    Http(u16),
    /// The rejected requests.
    Rejected,
    /// Finished requests for other reasons.
    FinishedOther,
    /// A number of the rank.
    Number(u16),
    /// A bucket of one of the rank's histograms.
    Bucket(u16, u16),
    /// The count of a histogram.
    Count(u16),
    /// The sum of a histogram.
    Sum(u16),
    /// Among the adapters, whose data is in the labels.
    Lora,
    /// A position that does not stay, because a bucket came before those with smaller edges. No
    /// engine writes them in such an order.
    Unsteady,
}

impl ValuePosition {
    /// A spot in one of a rank's lists, which are all short.
    #[inline]
    pub(super) fn at(spot: impl FnOnce(u16) -> Self, place: usize) -> Self {
        u16::try_from(place).map_or(Self::Unsteady, spot)
    }

    /// The spot of a bucket.
    #[inline]
    pub(super) fn bucket(histogram: usize, bucket: usize) -> Self {
        let place = u16::try_from(histogram).ok().zip(u16::try_from(bucket).ok());
        place.map_or(Self::Unsteady, |(histogram, bucket)| Self::Bucket(histogram, bucket))
    }
}
