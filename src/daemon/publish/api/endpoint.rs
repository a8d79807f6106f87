//! The endpoints of the API, with their paths and query parameters.

use crate::publish::api::query::FILTER;

/// An endpoint of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiEndpoint {
    /// Every variant in one line.
    Summary,
    /// Every number and the steps that made it.
    Decisions,
    /// The desired replicas of one variant.
    Desired,
    /// The last hour of one variant.
    History,
    /// The explanation of one variant's desired replicas, and the changes that would affect them.
    Explain,
    /// Events of all variants.
    Events,
    /// Status of the daemon and its fleet.
    Status,
    /// What was learned of engines.
    Cards,
    /// The `OpenAPI` document of this API.
    Openapi,
}

impl ApiEndpoint {
    pub(crate) const ALL: [Self; 9] = [
        Self::Summary,
        Self::Decisions,
        Self::Desired,
        Self::Explain,
        Self::History,
        Self::Events,
        Self::Status,
        Self::Cards,
        Self::Openapi,
    ];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Summary => "/api/v1/summary",
            Self::Decisions => "/api/v1/decisions",
            Self::Desired => "/api/v1/desired",
            Self::Explain => "/api/v1/explain",
            Self::History => "/api/v1/history",
            Self::Events => "/api/v1/events",
            Self::Status => "/api/v1/status",
            Self::Cards => "/api/v1/cards",
            Self::Openapi => "/api/v1/openapi.json",
        }
    }

    /// Returns the query parameters that the endpoint accepts.
    pub(crate) const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Summary | Self::Decisions => FILTER,
            Self::Desired | Self::Explain | Self::History => &["namespace", "variant"],
            Self::Events => &["namespace", "model", "variant", "limit"],
            Self::Status | Self::Cards | Self::Openapi => &[],
        }
    }

    /// Returns true if the response is about one variant, which the query must name.
    pub(crate) const fn is_of_one_variant(self) -> bool {
        matches!(self, Self::Desired | Self::Explain | Self::History)
    }
}
