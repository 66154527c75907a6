//! A picture of a job on a terminal, again and again.
use super::picture::{Picture, RankMark};
use super::{WatchedJob, text};
use crate::say::has_colour;
use comity_cluster::folded;
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

/// Choices of the user.
#[derive(Debug, Default)]
struct ScreenChoice {
    paused: bool,
    /// The first rank shown.
    first: usize,
}

/// Until the user ends it.
pub(super) fn watch(mut job: WatchedJob, every: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let out = (|| {
        let mut chosen = ScreenChoice::default();
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
fn heed(event: &Event, chosen: &mut ScreenChoice) -> bool {
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
    if !has_colour(true) {
        return if mark >= RankMark::Slow { plain.add_modifier(Modifier::BOLD) } else { plain };
    }
    match mark {
        RankMark::Fine => plain,
        RankMark::Waits => plain.fg(Color::DarkGray),
        RankMark::Slow => plain.fg(Color::Yellow),
        RankMark::Hung | RankMark::Failed => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

/// Most lines of what was found.
const FOUND: usize = 8;

/// Rows of ranks that are shown before a long sentence of what was found.
const LEAST_RANKS: usize = 3;
/// A terminal of fewer lines goes without the command and without empty lines.
const LOW: u16 = 16;

/// Findings, in at most so many lines; the last one says that more follows.
fn found(picture: &Picture, width: u16, most: usize) -> Vec<Line<'static>> {
    let folded = |f: &super::picture::Finding| {
        let lines = folded(&format!("! {}", f.text), usize::from(width), "  ");
        lines.into_iter().map(|l| (l, style(f.mark))).collect::<Vec<_>>()
    };
    let mut lines: Vec<_> = picture.findings.iter().flat_map(folded).collect();
    if lines.len() > most {
        lines.truncate(most);
        if let Some((last, _)) = lines.last_mut() {
            let kept: String = last.chars().take(usize::from(width).saturating_sub(4)).collect();
            *last = format!("{kept} ...");
        }
    }
    lines.into_iter().map(|(text, style)| Line::styled(text, style)).collect()
}

/// The last line: what is not shown, and as much of the keys as there is room for.
fn foot(width: u16, hidden: [(usize, &str); 2], is_paused: bool) -> String {
    let count = |(n, what): &(usize, &str)| format!("{n} {what}{}", if *n == 1 { "" } else { "s" });
    let counts: Vec<_> = hidden.iter().filter(|(n, _)| *n > 0).map(count).collect();
    let more = if counts.is_empty() { String::new() } else { format!("not shown: {}", counts.join(", ")) };
    let paused = if is_paused { "PAUSED" } else { "" };
    let keys = ["q ends   p pauses   arrows scroll", "q ends   arrows scroll", "q ends", ""];
    let line = |keys: &str| {
        let parts = [keys, &more, paused].into_iter().filter(|p| !p.is_empty());
        parts.collect::<Vec<_>>().join("   ")
    };
    let fits = |line: &String| line.chars().count() <= usize::from(width);
    keys.into_iter().map(line).find(fits).unwrap_or_else(|| line("").replace("not shown: ", "+ "))
}

fn draw(frame: &mut Frame<'_>, picture: &Picture, chosen: &mut ScreenChoice) {
    let area = frame.area();
    let is_low = area.height < LOW;
    let (head, gap) = if is_low { (1, 0) } else { (2, 1) };
    let least = picture.rows.len().min(LEAST_RANKS) + 1;
    let most = usize::from(area.height).saturating_sub(head + gap + least + 1);
    let said = found(picture, area.width, most.min(FOUND));
    let findings = said.len() as u16;
    let links = picture.lines.len() as u16;
    let told = if findings == 0 { 0 } else { findings + gap as u16 };
    let room = area.height.saturating_sub(head as u16 + told + 1);
    // Links have half of what the ranks leave, or what they need.
    let rest = room.saturating_sub(least as u16);
    let below = if links == 0 || rest < 3 { 0 } else { (links + 2).min((room / 2).min(rest)) };
    let [head, told, ranks, lines, _, last] = Layout::vertical([
        Constraint::Length(head as u16),
        Constraint::Length(told),
        Constraint::Length((picture.rows.len() + 1).min(usize::from(room.saturating_sub(below))) as u16),
        Constraint::Length(below),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let title = format!("{}, up {}", picture.title, text::age(Some(picture.up)));
    frame.render_widget(Paragraph::new(vec![Line::styled(title, bold), Line::raw(&picture.command)]), head);
    frame.render_widget(Paragraph::new(said), told);
    let unseen = picture.rows.len().saturating_sub(usize::from(ranks.height.saturating_sub(1)));
    chosen.first = chosen.first.min(unseen);
    frame.render_widget(table(picture, chosen.first, ranks.width), ranks);
    if below > 0 {
        frame.render_widget(link_table(picture), lines);
    }
    let hidden = usize::from(links.saturating_sub(below.saturating_sub(2))) + picture.more_lines;
    let text = foot(last.width, [(unseen, "rank"), (hidden, "link")], chosen.paused);
    frame.render_widget(Line::raw(text), last);
}

/// The column of calls, which takes what is left.
const CALL: usize = 4;
/// Columns that a narrow terminal goes without, in this order: process ids, states (the marks say what is wrong), numbers of calls, hosts, rates,
/// shares of waiting, ages.
const SPARED: [usize; 8] = [2, 3, 10, 1, 9, 8, 7, 5];

/// The columns for which there is room, with their widths.
fn columns(widest: &[usize; 11], width: u16) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..widest.len()).collect();
    let needs = |kept: &[usize]| -> usize {
        let of = |i: &usize| if *i == CALL { widest[*i].clamp(12, 32) } else { widest[*i] };
        kept.iter().map(|i| of(i) + 2).sum::<usize>() + MARK
    };
    for spared in SPARED {
        if needs(&kept) <= usize::from(width) {
            break;
        }
        kept.retain(|i| *i != spared);
    }
    kept
}

/// The width of the column of marks.
const MARK: usize = 6;

fn table(picture: &Picture, first: usize, room: u16) -> Table<'static> {
    let cells = text::cells(picture);
    let widest = |i: usize| {
        let all = cells.iter().map(|c| c[i].chars().count()).chain([text::HEADS[i].len()]);
        all.max().unwrap_or(0).min(if i == 1 { 20 } else { usize::MAX })
    };
    let widest: [usize; 11] = std::array::from_fn(widest);
    let kept = columns(&widest, room);
    let width = |&i: &usize| match i {
        CALL => Constraint::Min(12),
        _ => Constraint::Length(widest[i] as u16),
    };
    let widths: Vec<Constraint> = kept.iter().map(width).chain([Constraint::Length(MARK as u16)]).collect();
    let rows = picture.rows.iter().zip(&cells).skip(first).map(|(row, cells)| {
        let shown = kept.iter().map(|i| cells[*i].clone());
        Row::new(shown.chain([text::word(row.mark).to_owned()]).map(Cell::from)).style(style(row.mark))
    });
    let heads = Row::new(kept.iter().map(|i| Cell::from(text::HEADS[*i])).collect::<Vec<_>>())
        .style(Style::default().add_modifier(Modifier::UNDERLINED));
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
            text::payload(l.total),
        ])
    });
    let heads = Row::new(["link", "over", "there", "of busiest", "back", "of busiest", "bytes"])
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

    const TOLD: &str = "nothing has moved for 5 s: ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 more wait for rank 1, which is in no call";

    #[test]
    fn the_screen_shows_ranks_links_and_what_was_found_also_when_it_is_small() {
        let row = |rank| Rank {
            rank,
            host: "h".into(),
            pid: 123_456,
            state: "runs".into(),
            call: "all_reduce #7 f32[40000] max".into(),
            waits_for: Some(1),
            out: Some(123.4e6),
            inward: Some(123.4e6),
            calls: 1_000_000,
            mark: RankMark::Hung,
            ..Rank::default()
        };
        let picture = Picture {
            title: "job 7f".into(),
            rows: (0..12).map(row).collect(),
            lines: (1..9)
                .map(|b| Link { a: 0, b, kind: "tcp".into(), there: Some(1e9), back: Some(5e8), total: 10 })
                .collect(),
            findings: vec![Finding { mark: RankMark::Hung, text: TOLD.into() }],
            ..Picture::default()
        };
        let mut chosen = ScreenChoice::default();
        for (w, h) in [(140, 40), (80, 24), (20, 5), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
            terminal.draw(|f| draw(f, &picture, &mut chosen)).unwrap();
            let text = format!("{}", terminal.backend());
            if h >= 24 {
                for part in
                    ["job 7f", "! nothing has moved for 5 s", "is in no call", "HUNG", "1.0 Gbit/s", "q ends"]
                {
                    assert!(text.contains(part), "{part} at {w}x{h}:\n{text}");
                }
                // What is left on a narrow terminal still says who, in what, for whom.
                for head in ["rank", "call", "age", "waits for", "waiting", "of busiest"] {
                    assert!(text.contains(head), "{head} at {w}x{h}:\n{text}");
                }
                assert!(text.contains("11  ") == (h == 40), "{text}");
                assert_eq!(text.contains("not shown: 4 ranks"), h == 24, "{text}");
                assert_eq!(text.contains("123456"), w == 140, "{text}");
            }
        }
        assert!(!heed(&Event::Key(KeyCode::Char('q').into()), &mut chosen));
        assert!(heed(&Event::Key(KeyCode::Char('p').into()), &mut chosen) && chosen.paused);
    }
    #[test]
    fn a_small_terminal_shows_ranks_before_the_whole_warning_and_what_it_leaves_out() {
        let row =
            |rank| Rank { rank, call: format!("barrier #{rank}"), mark: RankMark::Hung, ..Rank::default() };
        let picture = Picture {
            title: "job 7f".into(),
            rows: (0..4).map(row).collect(),
            lines: (1..4)
                .map(|b| Link { a: 0, b, kind: "tcp".into(), there: None, back: None, total: 10 })
                .collect(),
            findings: vec![Finding { mark: RankMark::Hung, text: TOLD.into() }],
            ..Picture::default()
        };
        for (w, h, ranks) in [(40, 10, 4), (40, 8, 3), (40, 6, 3), (60, 12, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
            terminal.draw(|f| draw(f, &picture, &mut ScreenChoice::default())).unwrap();
            let text = format!("{}", terminal.backend());
            assert_eq!(text.matches("barrier #").count(), ranks, "{w}x{h}:\n{text}");
            assert!(text.contains("HUNG") && text.contains("waits for"), "{w}x{h}:\n{text}");
            let last = text.lines().last().unwrap().trim_matches(['"', ' ']);
            let wanted = match h {
                10 => "not shown: 3 links",
                12 => "not shown: 1 rank, 1 link",
                _ => "not shown: 1 rank, 3 links",
            };
            assert!(last.ends_with(wanted), "{w}x{h}:\n{text}");
            assert_eq!(text.contains("! nothing has moved"), h > 6, "{w}x{h}:\n{text}");
            assert_eq!(text.contains("..."), h == 8, "{w}x{h}:\n{text}");
        }
    }
}
