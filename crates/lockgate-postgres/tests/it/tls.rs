//! Encrypted connections, with a server that is who it says.

use std::{fs, path::PathBuf};

use lockgate_core::LogError;
use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::{
    server::{Server, batch, execute, shared_server},
    support::Owner,
};

/// An authority, and its certificate in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Gives the server a certificate for that name, and has it speak TLS.
    fn certify(&self, server: &Server, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (file, text) in [
            ("test.crt", certificate.pem()),
            ("test.key", key.serialize_pem()),
        ] {
            // By the server, as whose the file has to be.
            let lines = format!("SELECT regexp_split_to_table('{text}', E'\\r?\\n')");
            let program = format!("umask 077; cat > {file}");
            batch(
                &server.url,
                &format!("COPY ({lines}) TO PROGRAM '{program}'"),
            );
        }
        for (setting, value) in [
            ("ssl_cert_file", "test.crt"),
            ("ssl_key_file", "test.key"),
            ("ssl", "on"),
        ] {
            batch(
                &server.url,
                &format!("ALTER SYSTEM SET {setting} = '{value}'"),
            );
        }
        // A server that is killed starts again with what it was told.
        server.crash();
    }
}

fn with_tls(server: &Server, more: &str) -> String {
    format!("{}?application_name=over_tls&{more}", server.url)
}

/// Why the log cannot be opened, with all causes.
fn refused(url: &str) -> String {
    match PostgresLog::open(url, "shard", PostgresLogOptions::default()).unwrap_err() {
        OpenError::Log(error @ LogError::Remote { .. }) => lockgate_core::with_sources(&error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_over_tls_is_encrypted_and_knows_its_server() {
    let test = "a_log_over_tls_is_encrypted_and_knows_its_server";
    if shared_server(test).is_none() {
        return;
    }
    let server = Server::start();
    let plain = format!("{}?sslmode=require", server.url);
    let told = refused(&plain);
    assert!(told.contains("server does not support TLS"), "{told}");

    let (authority, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let trusts = |authority: &Authority, mode: &str| {
        let file = authority.file();
        with_tls(
            &server,
            &format!("sslmode={mode}&sslrootcert={}", file.display()),
        )
    };
    authority.certify(&server, "127.0.0.1");
    for mode in ["require", "verify-full"] {
        let mut owner = Owner::start(&trusts(&authority, mode), mode);
        owner.append("a").unwrap();
        owner.sync();
        let connections = |how: &str| {
            let sql = "SELECT FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                       WHERE application_name = 'over_tls' AND ";
            execute(&server.url, &format!("{sql}{how}"), &[])
        };
        assert!(connections("ssl") >= 2);
        assert_eq!(connections("NOT ssl"), 0);
    }
    // What it wrote is there for who comes plainly, and the other way round.
    let mut owner = Owner::start(&server.url, "require");
    assert_eq!(owner.records.len(), 1);
    owner.append("b").unwrap();
    owner.sync();
    let owner = Owner::start(&trusts(&authority, "require"), "require");
    assert_eq!(owner.records.len(), 2);

    let told = refused(&trusts(&stranger, "require"));
    assert!(told.contains("UnknownIssuer"), "{told}");
    let told = refused(&with_tls(&server, "sslmode=require"));
    assert!(
        told.contains("UnknownIssuer"),
        "the system does not know it: {told}"
    );
    authority.certify(&server, "another.example");
    let told = refused(&trusts(&authority, "require"));
    assert!(told.contains("not valid for name"), "{told}");
}
