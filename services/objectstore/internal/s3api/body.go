package s3api

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// upload is a body that was read and verified. It is in memory (body) or in a file (blob).
type upload struct {
	body []byte
	blob *engine.Blob
	size int64
	etag string
	sum  engine.Checksum
	// crc64 is the default checksum, for a part of an upload that has none; nil: not needed.
	crc64 []byte
	// The memory that is given back.
	buffers *sync.Pool
	buffer  *[]byte
	share   *share
}

// release discards the file that was not handed to the engine, and gives the memory back.
func (u *upload) release() {
	if u.blob != nil {
		u.blob.Discard()
	}
	if u.buffer != nil {
		u.buffers.Put(u.buffer)
		u.share.release()
	}
}

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

// checksum finds the one x-amz-checksum-* of a request.
func (d *digest) checksum(h http.Header, p sigv4.Payload) error {
	set := func(name string) error {
		a := checksum.OfHeader(name)
		if a == "" {
			return s3err.InvalidRequest.With("The algorithm type you specified in x-amz-checksum- header is invalid.")
		}
		if d.algorithm != "" {
			return s3err.InvalidRequest.With("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
		}
		d.algorithm = a
		return nil
	}
	given := 0
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Checksum-") && checksum.OfHeader(name) != "" {
			given++
		}
	}
	if given > 1 {
		return s3err.InvalidRequest.With("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
	}
	for name, vs := range h {
		if !strings.HasPrefix(name, "X-Amz-Checksum-") || name == "X-Amz-Checksum-Mode" || name == "X-Amz-Checksum-Type" || name == "X-Amz-Checksum-Algorithm" {
			continue
		}
		low := strings.ToLower(name)
		if err := set(low); err != nil {
			return err
		}
		if d.wantSum = vs[0]; len(vs) != 1 || !checksum.Valid(d.algorithm, d.wantSum) {
			return s3err.InvalidRequest.With("Value for %s header is invalid.", low)
		}
	}
	if t := h.Get("X-Amz-Trailer"); t != "" {
		if p != sigv4.StreamSignedTrailer && p != sigv4.StreamUnsignedTrailer {
			return s3err.InvalidRequest.With("x-amz-trailer needs a payload with a trailer.")
		}
		for name := range strings.SplitSeq(t, ",") {
			name = strings.ToLower(strings.TrimSpace(name))
			if err := set(name); err != nil {
				return err
			}
			d.trailers = append(d.trailers, name)
		}
		d.inTrailer = true
	}
	want := h.Get("X-Amz-Sdk-Checksum-Algorithm")
	if want != "" && d.algorithm != "" && !strings.EqualFold(want, d.algorithm) {
		return s3err.InvalidRequest.With("Value for x-amz-sdk-checksum-algorithm header is invalid.")
	}
	if want != "" && d.algorithm == "" {
		return s3err.InvalidRequest.With("x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found.")
	}
	if t := h.Get("X-Amz-Checksum-Type"); t != "" && t != "FULL_OBJECT" {
		return s3err.InvalidRequest.With("Only the checksum type FULL_OBJECT is possible here.")
	}
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

// source is the decoded body of a request, with a deadline for every piece.
type source struct {
	io.Reader
	trailer func() http.Header
	pace    *pacedReader // nil: the bytes come from the store itself
}

func (c *call) source(d *digest) *source {
	pace := &pacedReader{r: c.r.Body, rc: &c.conn, idle: c.IdleTimeout}
	if c.auth.Chunked() {
		ch := c.auth.NewChunks(pace, d.decodedLen, d.trailers)
		return &source{ch, ch.Trailer, pace}
	}
	return &source{pace, func() http.Header { return nil }, pace}
}

// pacedReader gives a client the time idle for each piece of its body, and reports the progress to
// the body's share of the memory.
type pacedReader struct {
	r     io.Reader
	rc    *http.ResponseController
	idle  time.Duration
	set   time.Time
	share *share // nil until there is one
}

func (p *pacedReader) Read(b []byte) (int, error) {
	// A socket deadline is wall time by nature.
	now := time.Now()
	// The deadline is moved in steps of a quarter: setting it for every read would cost as much as
	// reading small pieces.
	if now.Sub(p.set) > p.idle/4 {
		p.set = now
		if err := p.rc.SetReadDeadline(now.Add(p.idle)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, err
		}
	}
	if p.share != nil {
		p.share.reading.Store(now.UnixNano())
		// Checked after the deadline was set. Otherwise a share could be revoked, with an expired
		// deadline, between the check and our own deadline, which would undo the cut.
		if p.share.revoked.Load() {
			return 0, errSlowBody
		}
	}
	n, err := p.r.Read(b)
	if p.share != nil {
		p.share.reading.Store(0)
		p.share.arrived.Add(int64(n))
		if err != nil && p.share.revoked.Load() {
			return n, errSlowBody
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = s3err.IncompleteBody.With("The body could not be read to its end: %v", err)
	}
	return n, err
}

var errSlowBody = s3err.RequestTimeout.With("The body came too slowly while other requests waited for the memory that it held.")

// receive reads and verifies a body. One of up to the engine's InlineBytes stays in memory, a larger
// one goes to a file.
func (c *call) receive(d *digest) (*upload, error) {
	return c.receiveWithin(d, c.Engine.InlineBytes())
}

// receiveWithin is receive with the largest body that stays in memory.
func (c *call) receiveWithin(d *digest, inline int64) (*upload, error) {
	u := &upload{size: d.decodedLen}
	src := c.source(d)
	var err error
	if d.decodedLen <= inline {
		err = c.receiveInline(u, d, src)
	} else {
		err = c.receiveFile(u, d, src)
	}
	if err == nil {
		u.etag, u.crc64 = hex.EncodeToString(d.gotMD5[:]), d.gotCRC64
		u.sum, err = d.verify(src.trailer())
	}
	if err != nil {
		u.release()
		return nil, err
	}
	return u, nil
}

func (c *call) receiveInline(u *upload, d *digest, src *source) error {
	// Memory for the whole body is reserved only after its first piece has arrived; see firstPiece.
	buf := c.buffer(int(min(d.decodedLen, firstPiece)))
	have, err := io.ReadFull(src, (*buf)[:min(d.decodedLen, firstPiece)])
	if err != nil {
		return bodyError(err)
	}
	s, err := c.reserve(max(d.decodedLen, 1), src.pace)
	if err != nil {
		return err
	}
	if d.decodedLen > int64(have) {
		first := buf
		buf = c.buffer(int(d.decodedLen))
		copy(*buf, (*first)[:have])
		c.buffers.Put(first)
	}
	u.buffers, u.buffer, u.share = &c.buffers, buf, s
	u.body = (*buf)[:d.decodedLen]
	if _, err := io.ReadFull(src, u.body[have:]); err != nil {
		return bodyError(err)
	}
	if err := atEnd(src); err != nil {
		return err
	}
	d.whole(u.body)
	return nil
}

func (c *call) receiveFile(u *upload, d *digest, src *source) error {
	s, err := c.reserve(engine.BlockSize, src.pace)
	if err != nil {
		return err
	}
	buf := c.buffer(128 << 10)
	u.buffers, u.buffer, u.share = &c.buffers, buf, s
	if u.blob, err = c.Engine.NewBlob(c.bucket, c.key); err != nil {
		return err
	}
	d.begin()
	for left := d.decodedLen; left > 0; {
		p := (*buf)[:min(left, int64(len(*buf)))]
		n, err := src.Read(p)
		d.write(p[:n])
		if _, werr := u.blob.Write(p[:n]); werr != nil {
			return werr
		}
		left -= int64(n)
		if err != nil && left > 0 {
			return bodyError(err)
		}
	}
	d.end()
	return atEnd(src)
}

// atEnd checks that nothing follows. For a chunked body this reads and verifies the last chunk and
// the trailer, so it must not be skipped.
func atEnd(src io.Reader) error {
	var one [1]byte
	for {
		n, err := src.Read(one[:])
		if n > 0 {
			return s3err.IncompleteBody
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
}

func bodyError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s3err.IncompleteBody
	}
	return err
}

// reserve waits for n bytes of the memory for bodies. pace is the body that fills them; nil when
// the bytes come from the store itself, which is never slow.
func (c *call) reserve(n int64, pace *pacedReader) (*share, error) {
	s, err := c.memory.acquire(c.r.Context(), n, &c.conn)
	if err == nil && pace != nil {
		pace.share = s
	}
	return s, err
}

// buffer gives a buffer of at least n bytes.
func (c *call) buffer(n int) *[]byte {
	if b, ok := c.buffers.Get().(*[]byte); ok && len(*b) >= n {
		return b
	}
	b := make([]byte, max(n, 16<<10))
	return &b
}

// readAll reads and verifies a small body, such as XML.
func (c *call) readAll(limit int64) ([]byte, error) {
	if c.auth.Payload == sigv4.StreamUnsignedTrailer && c.key == "" && c.r.Method == http.MethodPut {
		// As on AWS: what sets something of a bucket is signed as a whole.
		return nil, s3err.UnsignedSetting
	}
	d, err := c.readExpectations()
	if err != nil {
		return nil, err
	}
	if d.decodedLen > limit {
		return nil, s3err.EntityTooLarge
	}
	// In memory, even where inline_object is smaller than limit.
	u, err := c.receiveWithin(d, limit)
	if err != nil {
		return nil, err
	}
	defer u.release()
	return bytes.Clone(u.body), nil
}
