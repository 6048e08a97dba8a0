//! The figures of this process.

use crate::Page;

/// Adds what Prometheus' own libraries tell of a process: `process_cpu_seconds_total`, memory, open files, threads and start. Nothing
/// where the system does not tell, as on other systems than Linux.
pub fn process(page: &mut Page) {
    #[cfg(target_os = "linux")]
    // Without `/proc`, as in some sandboxes, there is nothing to tell.
    let _ = linux(page);
    #[cfg(not(target_os = "linux"))]
    let _ = page;
}

#[cfg(target_os = "linux")]
fn linux(page: &mut Page) -> procfs::ProcResult<()> {
    use procfs::process::{LimitValue, Process};

    /// Times of `/proc` are in ticks.
    #[expect(clippy::cast_precision_loss, reason = "exact for 2^53 ticks")]
    fn seconds(ticks: u64) -> f64 {
        ticks as f64 / procfs::ticks_per_second() as f64
    }

    let this = Process::myself()?;
    let stat = this.stat()?;
    page.counter(
        "process_cpu_seconds_total",
        "Time of processors that the process has used.",
    )
    .value(seconds(stat.utime + stat.stime));
    page.gauge(
        "process_resident_memory_bytes",
        "Memory that the process has in use.",
    )
    .value(stat.rss * procfs::page_size());
    page.gauge(
        "process_virtual_memory_bytes",
        "Addresses that the process has taken.",
    )
    .value(stat.vsize);
    page.gauge("process_threads", "Threads of the process.")
        .value(u64::try_from(stat.num_threads).unwrap_or(0));
    let booted = procfs::boot_time_secs()?;
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let booted = booted as f64;
    page.gauge(
        "process_start_time_seconds",
        "When the process started, as Unix time.",
    )
    .value(booted + seconds(stat.starttime));
    page.gauge("process_open_fds", "Open files of the process.")
        .value(this.fd_count()?);
    if let LimitValue::Value(max) = this.limits()?.max_open_files.soft_limit {
        page.gauge("process_max_fds", "Files that the process may have open.")
            .value(max);
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_figures() {
        let mut page = Page::default();
        process(&mut page);
        let text = page.finish();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_threads",
            "process_start_time_seconds",
            "process_open_fds",
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            let value: f64 = value
                .unwrap_or_else(|| panic!("{name}"))
                .trim()
                .parse()
                .unwrap();
            let least = if name.contains("cpu") { 0.0 } else { 1.0 };
            assert!(value >= least, "{name} {value}");
        }
    }
}
