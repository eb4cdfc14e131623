package rpc

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/stats"
)

// Compressed messages are refused: a frame is compressed in itself, and other requests are small.
// Any import may register a decompressor for the whole process (the trace exporter registers
// gzip), and gRPC would decompress messages before authentication, a handler or a bound on memory
// sees them: 12 KiB could become the largest message that is allowed.
//
// The refusal has three parts: encodingStats remembers the call's grpc-encoding, noDecompressor
// gives an empty message in place of a compressed one, and the interceptors answer before a
// handler runs.

type encodingKey struct{}

// encodingStats puts the encoding of a call's messages into its context.
type encodingStats struct{}

func (encodingStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (encodingStats) HandleConn(context.Context, stats.ConnStats)                       {}

func (encodingStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, encodingKey{}, new(string))
}

// HandleRPC sees the headers before the call's first message is read.
func (encodingStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	h, ok := s.(*stats.InHeader)
	if e, known := ctx.Value(encodingKey{}).(*string); ok && known {
		*e = h.Compression
	}
}

// checkEncoding refuses a call whose messages are compressed.
func checkEncoding(ctx context.Context) error {
	e, ok := ctx.Value(encodingKey{}).(*string)
	if !ok || *e == "" || *e == encoding.Identity {
		return nil
	}
	return Failure{Code: codes.Unimplemented, Reason: ReasonContentEncoding,
		Message: "grpc-encoding: compressed messages are not taken"}.Err()
}

// noDecompressor is the server's decompressor for gzip. It takes precedence over those of the
// process and decompresses nothing.
type noDecompressor struct{}

func (noDecompressor) Do(io.Reader) ([]byte, error) { return nil, nil }
func (noDecompressor) Type() string                 { return "gzip" }

func refuseEncoded(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := checkEncoding(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func refuseEncodedStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := checkEncoding(ss.Context()); err != nil {
		return err
	}
	return next(srv, ss)
}
