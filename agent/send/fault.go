package send

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Fault is the reason why a collector cannot be used, where only a person can change that.
type Fault string

// The faults. They are stable, since alerts use them as ids.
const (
	// FaultUnauthenticated: the collector does not know the token or the client certificate, or wants one.
	FaultUnauthenticated Fault = "UNAUTHENTICATED"
	// FaultForbidden: it knows who this is, who may not send for this agent id.
	FaultForbidden Fault = "PERMISSION_DENIED"
	// FaultNotACollector: a gRPC server that does not take batches.
	FaultNotACollector Fault = "NOT_A_COLLECTOR"
	// FaultServerUntrusted: its certificate is not signed by an authority that the settings trust.
	FaultServerUntrusted Fault = "TLS_UNTRUSTED"
	// FaultServerName: its certificate is for another name.
	FaultServerName Fault = "TLS_WRONG_NAME"
	// FaultServerExpired: its certificate is not valid now, by this machine's clock.
	FaultServerExpired Fault = "TLS_EXPIRED"
	// FaultClientCertificate: it refuses the client certificate, or wants one.
	FaultClientCertificate Fault = "TLS_CLIENT_CERTIFICATE"
	// FaultServerIsPlaintext: the settings want TLS, the port does not speak it.
	FaultServerIsPlaintext Fault = "TLS_TO_PLAINTEXT"
	// FaultServerIsTLS: the settings have no TLS, the port wants it.
	FaultServerIsTLS Fault = "PLAINTEXT_TO_TLS"
)

// Faults lists all faults.
func Faults() []Fault {
	return []Fault{FaultUnauthenticated, FaultForbidden, FaultNotACollector, FaultServerUntrusted, FaultServerName,
		FaultServerExpired, FaultClientCertificate, FaultServerIsPlaintext, FaultServerIsTLS}
}

// probeTimeout bounds the connection that finds the cause of a failure, and probeRead its wait for
// an alert after the handshake.
const (
	probeTimeout = 3 * time.Second
	probeRead    = 500 * time.Millisecond
)

// faultOf finds the fault behind the error of a session; "" for a failure that may pass by itself.
func (s *Sender) faultOf(ctx context.Context, address string, err error) Fault {
	if f := faultOfCode(err); f != "" {
		return f
	}
	if rpc.Reason(err) != "" {
		return "" // a collector gave this reason, so the connection works
	}
	return s.probe(ctx, address)
}

// faultOfCode is the fault that an answer names by its code; "" for every other one.
func faultOfCode(err error) Fault {
	switch status.Code(err) {
	case codes.Unauthenticated:
		return FaultUnauthenticated
	case codes.PermissionDenied:
		return FaultForbidden
	case codes.Unimplemented:
		return FaultNotACollector
	}
	return ""
}

// probe opens a connection of its own to find what keeps gRPC from connecting: gRPC's error has only
// a text. Nothing but a TLS handshake is sent.
func (s *Sender) probe(ctx context.Context, address string) Fault {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cfg, err := s.cfg.Client.TLS.Config()
	if err != nil {
		return ""
	}
	dial := s.dialer
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	conn, err := dial(ctx, address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	if cfg == nil {
		// Any answer to a handshake shows that the port speaks TLS. The certificate is not verified,
		// since nothing is sent afterwards.
		err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx)
		if err == nil || isRemoteAlert(err) {
			return FaultServerIsTLS
		}
		return ""
	}
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(address)
	}
	cfg.NextProtos = []string{"h2"}
	c := tls.Client(conn, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return handshakeFault(err)
	}
	// With TLS 1.3 a server refuses the client's certificate after the client's handshake.
	// Otherwise it sends its HTTP/2 settings now.
	_ = c.SetReadDeadline(time.Now().Add(probeRead))
	_, err = c.Read(make([]byte, 1))
	return handshakeFault(err)
}

func handshakeFault(err error) Fault {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &name):
		return FaultServerName
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return FaultServerExpired
	case errors.As(err, &authority), errors.As(err, &invalid):
		return FaultServerUntrusted
	case errors.As(err, &record):
		return FaultServerIsPlaintext
	case isRemoteAlert(err):
		return FaultClientCertificate
	}
	return ""
}

// isRemoteAlert: crypto/tls marks an alert that the other side sent so, and in no other way.
func isRemoteAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
