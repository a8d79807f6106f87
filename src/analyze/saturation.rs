//! Saturation in per cent: spare KV cache and spare queue.
