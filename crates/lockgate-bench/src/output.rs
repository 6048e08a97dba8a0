//! Output: tables for people, tab-separated lines and JSON for scripts.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

/// Rows under a header.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            header: header.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| cell.to_string()).collect();
        self.rows.push(cells);
    }

    /// Prints aligned columns on a terminal, and tab-separated lines without a header elsewhere.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if !stdout.is_terminal() {
            for row in &self.rows {
                writeln!(stdout, "{}", row.join("\t"))?;
            }
            return Ok(());
        }
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::TableStyle::new());
        table.set_header(self.header.iter().copied());
        for row in &self.rows {
            table.add_row(row);
        }
        for line in table.lines() {
            writeln!(stdout, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints one JSON object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(value)?;
    writeln!(io::stdout().lock(), "{line}")?;
    Ok(())
}
