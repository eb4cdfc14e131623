package accept_test

import (
	"crypto/rand"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func benchSubmission(i uint64, frame []byte) accept.Submission {
	id := identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: i * 500, SeqEnd: i*500 + 499}
	frame[0], frame[1], frame[2], frame[3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
	return accept.Submission{Frame: frame, Identity: id, SHA256: identity.Sum(frame), Records: 500, MaxTime: 1, SpoolID: "s"}
}

// BenchmarkAccept is the common path over a store in memory; BenchmarkBareRequests
// is its floor: the same three requests without the protocol.
func BenchmarkAccept(b *testing.B) {
	s := mem.New(nil)
	p, err := accept.New(accept.Config{Store: s, AuthorityID: "a", CollectorID: "c", Clock: run.WallClock{}, Rand: rand.Reader})
	if err != nil {
		b.Fatal(err)
	}
	frame := make([]byte, 8<<10)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		if _, err := p.Accept(b.Context(), benchSubmission(i, frame)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBareRequests(b *testing.B) {
	s := mem.New(nil)
	frame := make([]byte, 8<<10)
	body := make([]byte, 900)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		sub := benchSubmission(i, frame)
		if _, err := s.Create(b.Context(), layout.Blob(sub.SHA256, 0), frame, objstore.PutOptions{SHA256: sub.SHA256}); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Create(b.Context(), layout.Accepted(sub.Identity), body, objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
		if _, _, err := s.Get(b.Context(), layout.Condemned(sub.SHA256, 0), objstore.GetOptions{}); err == nil {
			b.Fatal("a marker")
		}
	}
}

func BenchmarkParseManifest(b *testing.B) {
	raw := goldenManifest().Marshal()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := accept.ParseManifest(raw); err != nil {
			b.Fatal(err)
		}
	}
}
