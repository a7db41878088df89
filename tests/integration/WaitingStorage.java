import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Kafka's LocalTieredStorage, changed in two ways. Objects appear atomically, as in an object store. Deletes wait while
 * the file `wait.while.there` exists.
 */
public class WaitingStorage implements RemoteStorageManager {
  private final LocalTieredStorage tier = new LocalTieredStorage();
  private final LocalTieredStorage staging = new LocalTieredStorage();
  private Path tierFolder;
  private Path stagingFolder;
  private Path waitFile;

  @Override
  public void configure(Map<String, ?> configs) {
    tierFolder = Path.of((String) configs.get("dir"));
    stagingFolder = Path.of(tierFolder + "-" + configs.get("broker.id"));
    waitFile = Path.of((String) configs.get("wait.while.there"));
    tier.configure(configs);
    Map<String, Object> changed = new HashMap<>(configs);
    changed.put("dir", stagingFolder.toString());
    staging.configure(changed);
  }

  @Override
  public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
      throws RemoteStorageException {
    Optional<CustomMetadata> metadata = staging.copyLogSegmentData(segment, data);
    String id = segment.remoteLogSegmentId().id().toString();
    try (Stream<Path> all = Files.walk(stagingFolder)) {
      // Move the snapshot last.
      Comparator<Path> order = Comparator.comparing(path -> path.toString().endsWith(".snapshot"));
      List<Path> files = all.filter(path -> path.getFileName().toString().contains(id)).sorted(order).toList();
      for (Path file : files) {
        Path object = tierFolder.resolve(stagingFolder.relativize(file));
        Files.createDirectories(object.getParent());
        Files.move(file, object);
      }
    } catch (IOException error) {
      throw new RemoteStorageException(error);
    }
    return metadata;
  }

  @Override
  public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
    return tier.fetchLogSegment(segment, start);
  }

  @Override
  public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
      throws RemoteStorageException {
    return tier.fetchLogSegment(segment, start, end);
  }

  @Override
  public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
    return tier.fetchIndex(segment, type);
  }

  @Override
  public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
    try {
      while (Files.exists(waitFile)) {
        Thread.sleep(20);
      }
    } catch (InterruptedException stopped) {
      throw new RemoteStorageException(stopped);
    }
    tier.deleteLogSegmentData(segment);
  }

  @Override
  public void close() throws IOException {
    tier.close();
    staging.close();
  }
}
