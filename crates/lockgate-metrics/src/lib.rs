//! Pages of metrics in the text format of Prometheus, version 0.0.4.
//!
//! Whoever has figures adds them to a [`Page`], family by family, and serves its text as [`CONTENT_TYPE`]. The format itself is
//! written by `prometheus-client`, the library of the Prometheus project.
//!
//! ```
//! use lockgate_core::Distribution;
//! use lockgate_metrics::Page;
//!
//! let mut page = Page::default();
//! page.gauge("shop_open_orders", "Orders that nobody has packed.").value(3_u64);
//! page.counter("shop_orders_total", "Orders by country.")
//!     .sample(&[("country", "de")], 12_u64)
//!     .sample(&[("country", "pe")], 7_u64);
//! let mut packing = Distribution::SHORT;
//! packing.record(20);
//! page.histogram("shop_packing_seconds", "How long it took to pack an order.").value(&packing);
//!
//! let text = page.finish();
//! assert!(text.contains("shop_orders_total{country=\"pe\"} 7\n"));
//! assert!(text.contains("shop_packing_seconds_bucket{le=\"0.025\"} 1\n"));
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod page;
mod process;

pub use page::{CONTENT_TYPE, Family, Page, Value};
pub use process::process;
