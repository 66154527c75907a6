//! The launcher's Unix socket, at which `comity top` and `comity stacks` ask what the job does: see [`crate::live`].
use crate::live::{JobView, make_folder, socket_of};
use rustix::process::{Pid, geteuid};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// Limit on a write of the answer to a visitor.
const LIMIT: Duration = Duration::from_secs(1);

/// The socket, while this value lives.
#[derive(Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    /// Listens, and has a thread answer with what `view` says.
    pub(crate) fn open(launcher: Pid, view: impl Fn() -> JobView + Send + 'static) -> io::Result<Self> {
        let path = socket_of(launcher);
        let listener = listen(&path)?;
        let door = Self(path);
        // It ends with the process: nothing in it is worth waiting for.
        std::thread::Builder::new().name("live".into()).spawn(move || {
            loop {
                match listener.accept() {
                    // Who went away has seen enough.
                    Ok((stream, _)) => drop(answer(&stream, &view)),
                    Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(door)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        // Only the last one of this user's finds it empty.
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

/// Removes what a supervisor of this launcher that was killed has left.
pub(crate) fn clear(launcher: Pid) {
    drop(Door(socket_of(launcher)));
}

fn listen(path: &PathBuf) -> io::Result<UnixListener> {
    let dir = path.parent().unwrap_or(path);
    let mut tries = 0;
    loop {
        make_folder(dir)?;
        match UnixListener::bind(path) {
            Ok(listener) => {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                return Ok(listener);
            }
            // Left by a launcher that was killed and had this number.
            Err(e) if e.kind() == ErrorKind::AddrInUse && tries < 3 => std::fs::remove_file(path)?,
            // Another job has removed the folder meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound && tries < 3 => {}
            Err(e) => return Err(e),
        }
        tries += 1;
    }
}

fn answer(mut stream: &UnixStream, view: &impl Fn() -> JobView) -> io::Result<()> {
    if !may_ask(stream) {
        return Ok(());
    }
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(&serde_json::to_vec(&view())?)
}

/// This user, or root. The folder and the mode keep others out; this does so where a file system knows no modes.
fn may_ask(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        comity::tools::peer_user(stream).is_ok_and(|uid| uid == geteuid().as_raw() || uid == 0)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (stream, geteuid());
        true
    }
}
