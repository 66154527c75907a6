//! A picture of a job on a terminal, again and again.
use super::picture::{Picture, RankMark};
use super::{Watched, has_colour, text};
use ratatui::{
    Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Cell, Paragraph, Row, Table},
};
use std::{
    io,
    time::{Duration, Instant},
};

/// What the user has chosen.
#[derive(Debug, Default)]
struct Chosen {
    paused: bool,
    /// The first rank shown.
    first: usize,
}

/// Until the user ends it.
pub(super) fn watch(mut job: Watched, every: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let out = (|| {
        let mut chosen = Chosen::default();
        let mut due = Instant::now() + every.min(Duration::from_millis(600));
        loop {
            let picture = job.picture();
            terminal.draw(|frame| draw(frame, &picture, &mut chosen))?;
            if event::poll(due.saturating_duration_since(Instant::now()))?
                && !heed(&event::read()?, &mut chosen)
            {
                return Ok(());
            }
            if Instant::now() >= due {
                due = Instant::now() + every;
                if !chosen.paused {
                    job.look();
                }
            }
        }
    })();
    ratatui::restore();
    out
}

/// Does what a key asks for; false to end.
fn heed(event: &Event, chosen: &mut Chosen) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('p') => chosen.paused = !chosen.paused,
        KeyCode::Up => chosen.first = chosen.first.saturating_sub(1),
        KeyCode::Down => chosen.first += 1,
        KeyCode::PageUp => chosen.first = chosen.first.saturating_sub(20),
        KeyCode::PageDown => chosen.first += 20,
        _ => {}
    }
    true
}

fn style(mark: RankMark) -> Style {
    let plain = Style::default();
    if !has_colour() {
        return if mark >= RankMark::Slow { plain.add_modifier(Modifier::BOLD) } else { plain };
    }
    match mark {
        RankMark::Fine => plain,
        RankMark::Waits => plain.fg(Color::DarkGray),
        RankMark::Slow => plain.fg(Color::Yellow),
        RankMark::Hung | RankMark::Failed => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn draw(frame: &mut Frame<'_>, picture: &Picture, chosen: &mut Chosen) {
    let findings = picture.findings.len().min(6) as u16;
    let links = picture.lines.len() as u16;
    let area = frame.area();
    let room = area.height.saturating_sub(5 + findings);
    let below = if links == 0 { 0 } else { (links + 2).min(room / 2) };
    let [head, told, ranks, lines, _, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(findings + u16::from(findings > 0)),
        Constraint::Length((picture.rows.len() + 1).min(usize::from(room.saturating_sub(below))) as u16),
        Constraint::Length(below),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let title = format!("{}, up {}", picture.title, text::age(Some(picture.up)));
    frame.render_widget(Paragraph::new(vec![Line::styled(title, bold), Line::raw(&picture.command)]), head);
    let said = picture.findings.iter().take(6).map(|f| Line::styled(format!("! {}", f.text), style(f.mark)));
    frame.render_widget(Paragraph::new(said.collect::<Vec<_>>()), told);
    chosen.first =
        chosen.first.min(picture.rows.len().saturating_sub(usize::from(ranks.height.saturating_sub(1))));
    frame.render_widget(table(picture, chosen.first), ranks);
    if below > 0 {
        frame.render_widget(link_table(picture), lines);
    }
    let paused = if chosen.paused { "   PAUSED" } else { "" };
    let hidden = usize::from(links.saturating_sub(below.saturating_sub(2))) + picture.more_lines;
    let more = if hidden > 0 { format!("   {hidden} links are not shown") } else { String::new() };
    frame.render_widget(Line::raw(format!("q ends   p pauses   arrows scroll{more}{paused}")), foot);
}

fn table(picture: &Picture, first: usize) -> Table<'static> {
    let cells = text::cells(picture);
    let width = |i: usize| {
        let widest =
            cells.iter().map(|c| c[i].chars().count()).chain([text::HEADS[i].len()]).max().unwrap_or(0);
        match i {
            4 => Constraint::Min(16),
            1 => Constraint::Max(widest.min(20) as u16),
            _ => Constraint::Length(widest as u16),
        }
    };
    let widths: Vec<Constraint> = (0..text::HEADS.len()).map(width).chain([Constraint::Length(6)]).collect();
    let rows = picture.rows.iter().zip(cells).skip(first).map(|(row, cells)| {
        Row::new(cells.into_iter().chain([text::word(row.mark).to_owned()]).map(Cell::from))
            .style(style(row.mark))
    });
    let heads =
        Row::new(text::HEADS.map(Cell::from)).style(Style::default().add_modifier(Modifier::UNDERLINED));
    Table::new(rows.collect::<Vec<_>>(), widths).header(heads).column_spacing(2)
}

fn link_table(picture: &Picture) -> Table<'static> {
    let most = picture.lines.iter().filter_map(|l| Some(l.there?.max(l.back?))).fold(0.0, f64::max);
    let bar = |rate: Option<f64>| {
        let part = if most > 0.0 { rate.unwrap_or(0.0) / most } else { 0.0 };
        "=".repeat((part * 12.0).round() as usize)
    };
    let rows = picture.lines.iter().map(|l| {
        Row::new([
            format!("{}-{}", l.a, l.b),
            l.kind.clone(),
            text::rate(l.there),
            bar(l.there),
            text::rate(l.back),
            bar(l.back),
            crate::size::bytes(l.total),
        ])
    });
    let heads = Row::new(["link", "over", "there", "", "back", "", "bytes"])
        .style(Style::default().add_modifier(Modifier::UNDERLINED))
        .top_margin(1);
    let widths = [8, 6, 12, 12, 12, 12, 9].map(Constraint::Length);
    Table::new(rows.collect::<Vec<_>>(), widths).header(heads).column_spacing(1)
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Finding, LinkLine as Link, Row as Rank};
    use super::*;
    use ratatui::{Terminal, backend::TestBackend};

    #[test]
    fn the_screen_shows_ranks_links_and_what_was_found_also_when_it_is_small() {
        let row = |rank| Rank {
            rank,
            host: "h".into(),
            call: "all_reduce #7".into(),
            mark: RankMark::Hung,
            ..Rank::default()
        };
        let picture = Picture {
            title: "job 7f".into(),
            rows: (0..12).map(row).collect(),
            lines: vec![Link {
                a: 0,
                b: 1,
                kind: "tcp".into(),
                there: Some(1e9),
                back: Some(5e8),
                total: 10,
            }],
            findings: vec![Finding { mark: RankMark::Hung, text: "nothing has moved for 5 s".into() }],
            ..Picture::default()
        };
        let mut chosen = Chosen::default();
        for (w, h) in [(140, 40), (80, 24), (20, 5), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
            terminal.draw(|f| draw(f, &picture, &mut chosen)).unwrap();
            let text = format!("{}", terminal.backend());
            if h >= 24 {
                for part in
                    ["job 7f", "! nothing has moved for 5 s", "all_reduce", "HUNG", "1.0 Gbit/s", "q ends"]
                {
                    assert!(text.contains(part), "{part} at {w}x{h}:\n{text}");
                }
            }
        }
        assert!(!heed(&Event::Key(KeyCode::Char('q').into()), &mut chosen));
        assert!(heed(&Event::Key(KeyCode::Char('p').into()), &mut chosen) && chosen.paused);
    }
}
