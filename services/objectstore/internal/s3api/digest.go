package s3api

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// digest has the checksums that a body must have, and those that it has: computed by whole, or by begin, write and end
// for a body that comes in pieces.
type digest struct {
	wantMD5    []byte
	wantSHA    []byte // x-amz-content-sha256
	algorithm  string // of the checksum; "" none
	wantSum    string // from a header; "" when it comes in the trailer
	inTrailer  bool
	computed   bool // the client gave none: this store's own
	both       bool // the default checksum is needed beside that of the algorithm, if there is one
	trailers   []string
	decodedLen int64

	md5, sha, sum, crc64 hash.Hash // of a body in pieces; but for md5 they are nil unless needed
	gotMD5               [md5.Size]byte
	gotSHA               [sha256.Size]byte // the payload's, and the checksum's where that is SHA256: computed once
	gotSum               []byte            // of other algorithms
	gotCRC64             []byte            // of both
	room                 [8]byte           // for the default checksum
}

// byDefault gives a body the checksum that it gets when its client gives none.
func (d *digest) byDefault() {
	if d.algorithm == "" {
		d.algorithm, d.computed = checksum.Default, true
	}
}

func (d *digest) needsSHA() bool { return d.wantSHA != nil || d.algorithm == "SHA256" }

// inParallel is the least body, bytes, whose sums are computed on two cores: for a large body they take longer than all
// else but the disk.
const inParallel = 256 << 10

// whole computes the sums of a body that is there as a whole.
func (d *digest) whole(body []byte) {
	switch {
	case !d.needsSHA():
		d.gotMD5 = md5.Sum(body)
	case len(body) >= inParallel:
		d.bothInParallel(body)
	default:
		d.gotMD5, d.gotSHA = md5.Sum(body), sha256.Sum256(body)
	}
	if d.algorithm != "" && d.algorithm != "SHA256" {
		d.gotSum = checksum.Append(d.room[:0], d.algorithm, body)
	}
	if d.both {
		d.gotCRC64 = checksum.Append(nil, checksum.Default, body)
	}
}

func (d *digest) bothInParallel(body []byte) {
	var other sync.WaitGroup
	other.Go(func() { d.gotMD5 = md5.Sum(body) })
	d.gotSHA = sha256.Sum256(body)
	other.Wait()
}

func (d *digest) begin() {
	d.md5 = md5.New()
	if d.needsSHA() {
		d.sha = sha256.New()
	}
	if d.algorithm != "" && d.algorithm != "SHA256" {
		d.sum = checksum.New(d.algorithm)
	}
	if d.both {
		d.crc64 = checksum.New(checksum.Default)
	}
}

func (d *digest) write(p []byte) {
	d.md5.Write(p)
	if d.sha != nil {
		d.sha.Write(p)
	}
	if d.sum != nil {
		d.sum.Write(p)
	}
	if d.crc64 != nil {
		d.crc64.Write(p)
	}
}

func (d *digest) end() {
	d.md5.Sum(d.gotMD5[:0])
	if d.sha != nil {
		d.sha.Sum(d.gotSHA[:0])
	}
	if d.sum != nil {
		d.gotSum = d.sum.Sum(nil)
	}
	if d.crc64 != nil {
		d.gotCRC64 = d.crc64.Sum(nil)
	}
}

// checksumText is the value of the checksum's header.
func (d *digest) checksumText() string {
	if d.algorithm == "SHA256" {
		return base64.StdEncoding.EncodeToString(d.gotSHA[:])
	}
	return base64.StdEncoding.EncodeToString(d.gotSum)
}

// readExpectations reads the headers that declare the body's length and checksums.
func (c *call) readExpectations() (*digest, error) {
	h := c.r.Header
	d := &digest{wantSHA: c.auth.SHA256, decodedLen: c.r.ContentLength}
	if err := d.md5Header(h); err != nil {
		return nil, err
	}
	if c.auth.Chunked() {
		n, err := strconv.ParseInt(h.Get("X-Amz-Decoded-Content-Length"), 10, 64)
		if err != nil || n < 0 {
			return nil, s3err.MissingContentLength
		}
		d.decodedLen = n
	}
	if d.decodedLen < 0 {
		return nil, s3err.MissingContentLength
	}
	if d.decodedLen > c.MaxObjectBytes {
		return nil, s3err.EntityTooLarge.Detail("ProposedSize", strconv.FormatInt(d.decodedLen, 10)).
			Detail("MaxSizeAllowed", strconv.FormatInt(c.MaxObjectBytes, 10))
	}
	if err := d.checksum(h, c.auth.Payload); err != nil {
		return nil, err
	}
	return d, nil
}

// md5Header reads Content-MD5.
func (d *digest) md5Header(h http.Header) error {
	vs := h["Content-Md5"]
	if len(vs) == 0 {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(vs[0])
	if err != nil || len(b) != md5.Size || len(vs) > 1 {
		return s3err.InvalidDigest.Detail("Content-MD5", strings.Join(vs, ","))
	}
	d.wantMD5 = b
	return nil
}

var (
	errManyChecksums  = s3err.InvalidRequest.With("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
	errNoSuchChecksum = s3err.InvalidRequest.With("The algorithm type you specified in x-amz-checksum- header is invalid.")
)

// checksum finds the one x-amz-checksum-* of a request.
func (d *digest) checksum(h http.Header, p sigv4.Payload) error {
	if err := d.checksumHeader(h); err != nil {
		return err
	}
	if err := d.checksumTrailer(h.Get("X-Amz-Trailer"), p); err != nil {
		return err
	}
	want := h.Get("X-Amz-Sdk-Checksum-Algorithm")
	switch {
	case want != "" && d.algorithm == "":
		return s3err.InvalidRequest.With("x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found.")
	case want != "" && !strings.EqualFold(want, d.algorithm):
		return s3err.InvalidRequest.With("Value for x-amz-sdk-checksum-algorithm header is invalid.")
	}
	if t := h.Get("X-Amz-Checksum-Type"); t != "" && t != fullObject {
		return s3err.InvalidRequest.With("Only the checksum type FULL_OBJECT is possible here.")
	}
	return nil
}

// setAlgorithm takes the algorithm of a header or of a trailer, of which a request has one.
func (d *digest) setAlgorithm(header string) error {
	a := checksum.OfHeader(header)
	switch {
	case a == "":
		return errNoSuchChecksum
	case d.algorithm != "":
		return errManyChecksums
	}
	d.algorithm = a
	return nil
}

// isChecksumHeader reports whether a header gives a checksum, of whatever algorithm, and not something about checksums.
func isChecksumHeader(name string) bool {
	switch name {
	case "X-Amz-Checksum-Mode", "X-Amz-Checksum-Type", "X-Amz-Checksum-Algorithm":
		return false
	}
	return strings.HasPrefix(name, "X-Amz-Checksum-")
}

// checksumHeader reads the checksum that comes in a header.
func (d *digest) checksumHeader(h http.Header) error {
	given, name, unknown := 0, "", false
	for n := range h {
		if !isChecksumHeader(n) {
			continue
		}
		if checksum.OfHeader(n) == "" {
			unknown = true
			continue
		}
		given, name = given+1, n
	}
	// Not in the loop: which error it is must not depend on the order of a map.
	switch {
	case given > 1:
		return errManyChecksums
	case unknown:
		return errNoSuchChecksum
	case given == 0:
		return nil
	}
	if err := d.setAlgorithm(name); err != nil {
		return err
	}
	vs := h[name]
	if d.wantSum = vs[0]; len(vs) != 1 || !checksum.Valid(d.algorithm, d.wantSum) {
		return s3err.InvalidRequest.With("Value for %s header is invalid.", strings.ToLower(name))
	}
	return nil
}

// checksumTrailer reads the header that says which checksum follows the body.
func (d *digest) checksumTrailer(names string, p sigv4.Payload) error {
	if names == "" {
		return nil
	}
	if p != sigv4.StreamSignedTrailer && p != sigv4.StreamUnsignedTrailer {
		return s3err.InvalidRequest.With("x-amz-trailer needs a payload with a trailer.")
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if err := d.setAlgorithm(name); err != nil {
			return err
		}
		d.trailers = append(d.trailers, name)
	}
	d.inTrailer = true
	return nil
}

// verify compares the checksums after the last byte. trailer is that of an aws-chunked body.
func (d *digest) verify(trailer http.Header) (engine.Checksum, error) {
	if d.wantMD5 != nil && !bytes.Equal(d.gotMD5[:], d.wantMD5) {
		return engine.Checksum{}, s3err.BadDigest.Detail("CalculatedDigest", base64.StdEncoding.EncodeToString(d.gotMD5[:])).
			Detail("ExpectedDigest", hex.EncodeToString(d.wantMD5))
	}
	if d.wantSHA != nil && !bytes.Equal(d.gotSHA[:], d.wantSHA) {
		return engine.Checksum{}, s3err.ContentSHAMismatch.Detail("ClientComputedContentSHA256", hex.EncodeToString(d.wantSHA)).
			Detail("S3ComputedContentSHA256", hex.EncodeToString(d.gotSHA[:]))
	}
	if d.algorithm == "" {
		return engine.Checksum{}, nil
	}
	if d.inTrailer {
		name := checksum.Header(d.algorithm)
		if d.wantSum = trailer.Get(name); !checksum.Valid(d.algorithm, d.wantSum) {
			return engine.Checksum{}, s3err.InvalidRequest.With("Value for %s trailing header is invalid.", name)
		}
	}
	got := d.checksumText()
	if got != d.wantSum && !d.computed {
		return engine.Checksum{}, s3err.BadDigest.With("The %s you specified did not match the calculated checksum.", d.algorithm)
	}
	return engine.Checksum{Algorithm: d.algorithm, Type: "FULL_OBJECT", Value: got}, nil
}
