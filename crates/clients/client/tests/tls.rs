//! The client over TLS: rustls on both sides, through [`quorate_client::Builder::connector`].

#[path = "support/node.rs"]
mod node;

use std::sync::Arc;
use std::{error, io};

use node::Cluster;
use quorate_client::{Client, Error};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Failed = Box<dyn error::Error>;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A server that speaks TLS. Returns its address and its certificate.
async fn serve(cluster: Cluster) -> Result<(String, CertificateDer<'static>), Failed> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = pair.cert.der().clone();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, cluster) = (acceptor.clone(), cluster.clone());
            tokio::spawn(async move {
                // A client that refuses the certificate ends here.
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let _ = cluster.serve(stream).await;
            });
        }
    });
    Ok((address, certificate))
}

/// Connects to `localhost`, trusting these certificates.
async fn connect(address: &str, trusted: &[CertificateDer<'static>]) -> Result<Client, Failed> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.clone())?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost")?;
    let client = Client::builder(&[address])
        .database(1)
        .attempts(3)
        .connector(move |address| {
            let (connector, name) = (connector.clone(), name.clone());
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                connector.connect(name, stream).await
            }
        })
        .connect()
        .await?;
    Ok(client)
}

#[tokio::test]
async fn commands_and_transactions_run_over_tls() -> Result<(), Failed> {
    let cluster = Cluster::new();
    let (address, certificate) = serve(cluster.clone()).await?;
    let client = connect(&address, &[certificate]).await?;
    client.set("k", "v".repeat(100_000)).await?;
    assert_eq!(client.get("k").await?.map(|value| value.len()), Some(100_000));
    assert_eq!(client.incr("n").await?, 1);
    assert_eq!(client.txn(async |t| t.incr("n").await).await?, 2);
    let there = cluster.open();
    there.send(b"SELECT 1\r\n");
    assert_eq!(there.send(b"GET n\r\n"), b"$1\r\n2\r\n");
    Ok(())
}

#[tokio::test]
async fn a_node_that_is_not_trusted_is_no_node() -> Result<(), Failed> {
    let (address, _) = serve(Cluster::new()).await?;
    let (_, other) = serve(Cluster::new()).await?;
    let error = connect(&address, &[other]).await.err().ok_or("it must not connect")?;
    match error.downcast_ref::<Error>() {
        Some(Error::NoNode { reason, .. }) if reason.contains("certificate") => Ok(()),
        _ => Err(error),
    }
}

#[tokio::test]
async fn plain_tcp_at_a_tls_port_is_an_error_in_time() -> Result<(), Failed> {
    let (address, _) = serve(Cluster::new()).await?;
    let plain = Client::builder(&[address]).attempts(2).connect().await;
    let error = plain.err().ok_or_else(|| io::Error::other("it must not connect"))?;
    assert!(matches!(error, Error::NoNode { .. }), "{error}");
    Ok(())
}
