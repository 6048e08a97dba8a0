//! What many unique ids cost on disk and in memory, and how long they take.
//!
//! Adds ids in batches with a sync after each ten, then opens the index again and looks ids up: those that are there
//! and those that are not. Memory is the most that the process had; reads are calls of the system.
//!
//! ```text
//! cargo run --release -p lockgate-index --example many -- [IDS [MEMORY_MIB [FOLDER]]]
//! ```

use std::{
    error::Error,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use lockgate_index::{IndexOptions, UniqueIndex};

const BATCH: u64 = 10_000;
const LOOK_UPS: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments
        .next()
        .map_or(Ok(10_000_000), |text| text.parse())?;
    let memory: u64 = arguments.next().map_or(Ok(64), |text| text.parse())? << 20;
    let folder = tempfile::tempdir_in(arguments.next().as_deref().unwrap_or("."))?;
    let options = IndexOptions { memory };

    let (index, _) = UniqueIndex::open(folder.path(), &options)?;
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    for batch in 0..count.div_ceil(BATCH) {
        let first = batch * BATCH;
        let ids: Vec<_> = (first..count.min(first + BATCH))
            .map(|number| (id(number), number))
            .collect();
        let start = Instant::now();
        index.add(1, &ids, batch + 1)?;
        if batch % 10 == 9 {
            index.sync()?;
        }
        longest = longest.max(start.elapsed());
    }
    index.sync()?;
    let took = begun.elapsed().as_secs_f64();
    let disk = size(folder.path())?;
    println!(
        "{count} ids were added in {took:.1} s, {:.0} a second; the longest batch took {longest:.2?}",
        count as f64 / took
    );
    println!(
        "disk: {} MiB, {:.1} bytes an id; written: {:.1} times as much",
        disk >> 20,
        disk as f64 / count as f64,
        proc("io", "write_bytes")? as f64 / disk as f64
    );
    println!("memory so far: {} MiB", proc("status", "VmHWM")? / 1024);
    drop(index);

    let start = Instant::now();
    let (index, _) = UniqueIndex::open(folder.path(), &options)?;
    println!("opened in {:.2?}", start.elapsed());
    for (what, offset) in [("absent", count), ("absent, again", count), ("there", 0)] {
        let (start, reads) = (Instant::now(), proc("io", "syscr")?);
        let mut found = 0;
        for look_up in 0..LOOK_UPS / 100 {
            let number = |place| offset + (look_up * 100 + place) * 0x9e37_79b1 % count;
            let ids: Vec<_> = (0..100).map(|place| id(number(place))).collect();
            let looked = index.look_up(1, &ids)?;
            found += looked.found.iter().flatten().count() as u64;
        }
        assert_eq!(found, if offset == 0 { LOOK_UPS } else { 0 });
        let reads = proc("io", "syscr")? - reads;
        println!(
            "{what}: {:.0} look-ups a second, {:.3} reads each",
            LOOK_UPS as f64 / start.elapsed().as_secs_f64(),
            reads as f64 / LOOK_UPS as f64
        );
    }
    println!("memory: {} MiB at most", proc("status", "VmHWM")? / 1024);
    Ok(())
}

/// A number mixed into 128 bits, as a digest would be.
fn id(number: u64) -> u128 {
    let mix = |number: u64| {
        let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    };
    u128::from(mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15))) << 64 | u128::from(mix(!number))
}

/// A figure of this process.
fn proc(file: &str, name: &str) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string(Path::new("/proc/self").join(file))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let figure = line.and_then(|line| line.split_whitespace().next());
    Ok(figure.ok_or("no such figure")?.parse()?)
}

fn size(folder: &Path) -> std::io::Result<u64> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                size(&entry.path())
            } else {
                Ok(metadata.len())
            }
        })
        .sum()
}
